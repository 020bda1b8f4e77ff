"""One layer: run as transformers runs it, its inputs seen, its weights scaled, clipped and rounded as searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, qwen35, random_ids, saved

from labkit.awq.formats import can_hold
from labkit.awq.layer import UNCLIPPED, LayerPlan, awq_layer, round_layer
from labkit.awq.observe import Inputs, LayerRunner, watch
from labkit.awq.rounding import quantize
from labkit.awq.scopes import scopes_of
from labkit.awq.search import best_shares
from labkit.awq.source import DenseSource
from labkit.quant.int4 import Int4Weight

GROUP, TOKENS = 32, 70


@pytest.mark.parametrize("make", [llama, qwen35])
def test_layers_run_as_in_transformers(seed: int, tmp_path: Path, make: Any) -> None:
    """Each window is a sequence of its own: the same one twice gives the same."""
    model = make()
    source = DenseSource(saved(model, tmp_path))
    ids = random_ids(160, TOKENS)
    states = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states
    runner = LayerRunner(source.model_config, TOKENS)
    for number in range(source.model_config.num_hidden_layers - 1):  # the last one's comes after the final norm
        layer, before = source.layer(number), states[number][0]
        runner.run(layer, number, torch.randn_like(before))
        for _ in range(2):
            assert torch.allclose(runner.run(layer, number, before), states[number + 1][0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", [llama, qwen35])
def test_watching_changes_nothing_and_sees_every_input(seed: int, tmp_path: Path, make: Any) -> None:
    source = DenseSource(saved(make(), tmp_path))
    runner, hidden = LayerRunner(source.model_config, TOKENS), torch.randn(TOKENS, 64)
    for number in range(source.model_config.num_hidden_layers):
        layer = source.layer(number)
        before = runner.run(layer, number, hidden)
        seen = watch(layer, GROUP, step=1)
        assert torch.equal(runner.run(layer, number, hidden), before)
        scopes = scopes_of(source.model_config, number)
        assert {scope.first: (TOKENS, len(scope.tie)) for scope in scopes} == {
            name: tuple(inputs.rows.shape) for name, inputs in seen.items()
        }


@pytest.fixture(params=[llama, qwen35])
def searched(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """(tensors before, tensors after scaling, what is written, plan, inputs) of the last layer, which has attention."""
    source = DenseSource(saved(request.param(), tmp_path))
    number = source.model_config.num_hidden_layers - 1
    layer, runner = source.layer(number), LayerRunner(source.model_config, TOKENS)
    seen = watch(layer, GROUP, step=1)
    hidden = torch.randn(TOKENS, 64)
    hidden[:, 5] *= 20
    runner.run(layer, number, hidden)
    scopes = scopes_of(source.model_config, number)
    fits = {n for s in scopes for n, rows in s.readers.items() if can_hold(rows, len(s.tie), GROUP)}
    plan = LayerPlan(scopes, frozenset(fits), GROUP)
    before, tensors = source.layer_tensors(number), source.layer_tensors(number)
    return before, tensors, awq_layer(tensors, plan, seen), plan, seen


def test_ranges_are_searched_on_the_scaled_inputs(searched: Any) -> None:
    before, tensors, result, plan, seen = searched
    clipped = 0
    for scope in plan.scopes:
        # By columns: rows are scaled as well where they absorb (v_proj and up_proj, which are first in no scope).
        spread = tensors[f"{scope.first}.weight"][0] / before[f"{scope.first}.weight"][0]
        if scope.first == "mlp.gate_proj":
            assert float(spread.max() / spread.min()) > 1.5  # there is something to scale
        inputs = Inputs(GROUP, 1)
        inputs.add(seen[scope.first].rows / spread)
        for module in scope.readers:
            weight, got = tensors[f"{module}.weight"], result[f"{module}.weight"]
            shares = 1.0 if module in UNCLIPPED else best_shares(weight, inputs.gram, GROUP)  # type: ignore[arg-type]
            expected = quantize(module, weight, GROUP, shares)
            same = (got.unpack() == expected.unpack()).float().mean()
            assert float(same) > 0.97, module
            clipped += not torch.equal(got.packed, quantize(module, weight, GROUP).packed)
    assert clipped >= 4


def test_all_else_is_kept(searched: Any) -> None:
    before, _, result, plan, _ = searched
    assert result.keys() == before.keys()
    packed = {name for name, value in result.items() if isinstance(value, Int4Weight)}
    assert packed == {f"{module}.weight" for module in plan.wanted}
    absorbers = {scope.absorber for scope in plan.scopes}
    untouched = [n for n, v in result.items() if not isinstance(v, Int4Weight) and n not in absorbers]
    assert all(torch.equal(result[name], before[name]) for name in untouched)


def test_round_to_nearest_changes_no_norm(searched: Any) -> None:
    before, _, _, plan, _ = searched
    result = round_layer(before, plan)
    for name, value in result.items():
        if isinstance(value, Int4Weight):
            assert torch.equal(value.packed, quantize(name, before[name], GROUP).packed)
        else:
            assert torch.equal(value, before[name])

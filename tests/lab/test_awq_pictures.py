"""The pictures of chapter 05 show what was computed, in the drawing and in words."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import SVG, root_of, texts

from labkit.awq.observe import Inputs
from labkit.awq.rounding import rounded
from labkit.awq.search import Candidate, Readers, scale_candidates
from labkit.lab.awq_layer import look_at_layer, output_error, rounded_except
from labkit.lab.channel_bars import channel_bars, salient
from labkit.lab.loss_curve import loss_curve
from labkit.lab.weight_grid import weight_grid


def test_grid_counts_every_weight(seed: int) -> None:
    weights = torch.randn(64)
    picture = weight_grid(weights, title="a group")
    root = root_of(picture)
    rows = [line.split() for line in picture.text.splitlines()[2:]]
    counts = [int(row[4] if row[1] == "=" and row[0] == "q" else row[3]) for row in rows]
    assert len(rows) == 16 and sum(counts) == 64
    assert len(list(root.iter(f"{SVG}circle"))) == 64
    levels = {round(float(row[3]), 4) for row in rows}
    assert {round(value, 4) for value in rounded(weights[None], 64).unique().tolist()} <= levels
    assert "a group: 64 weights on 16 levels" in picture.alt


def test_a_clipped_grid_is_finer_and_further_off(seed: int) -> None:
    weights = torch.cat([torch.randn(62), torch.tensor([-4.0, 4.0])])
    whole, cut = (weight_grid(weights, keep=keep).text.splitlines()[:2] for keep in (1.0, 0.5))
    steps = [float(text[0].split()[-2]) for text in (whole, cut)]
    worst = [float(text[1].split()[-3]) for text in (whole, cut)]
    assert steps[1] == pytest.approx(steps[0] / 2, rel=5e-3) and worst[1] > 1.5 > worst[0]


def test_loud_channels_are_marked(seed: int) -> None:
    mean = torch.rand(200) + 0.5
    mean[17], mean[90] = 30.0, 20.0
    assert salient(mean) == [17, 90]
    picture = channel_bars(mean, title="x")
    root = root_of(picture)
    assert picture.text.splitlines()[1].startswith("loudest: 17 (30.00), 90 (20.00), ")
    assert "channel 0 to 199; the 2 loudest channels are marked" in texts(root)
    assert len(channel_bars(torch.ones(5)).text) > 20


def test_curve_marks_the_best(seed: int) -> None:
    x = torch.randn(60, 64)
    x[:, 3] *= 20
    inputs = Inputs(32, 1)
    inputs.add(x)
    found = scale_candidates(Readers({"a": torch.randn(16, 64)}, torch.arange(64), 32), inputs)
    best = min(found, key=lambda candidate: candidate.loss)
    picture = loss_curve(found, title="a")
    root_of(picture)
    assert f"best at alpha = {best.alpha:.2f}" in picture.alt and f"{best.loss:.5f}" in picture.text
    assert len(picture.text.splitlines()) == 22


def test_a_curve_of_one_kind_leaves_the_other_open() -> None:
    found = [Candidate(alpha / 20, False, 1 + alpha, torch.ones(1)) for alpha in range(3)]
    assert loss_curve(found).text.splitlines()[2].split() == ["0.00", "1.00000", "-"]


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        loss_curve([])
    with pytest.raises(ValueError, match="one row"):
        weight_grid(torch.ones(2, 4))


def test_a_layer_of_labkit_tiny() -> None:
    layer = look_at_layer("labkit-tiny", 3, windows=2, window=64)
    assert list(layer.scopes) == ["self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"]
    assert set(layer.scopes) == set(layer.inputs)
    for first, inputs in layer.inputs.items():
        weight = layer.weight(first)
        assert inputs.rows.shape == (64, weight.shape[1]) and inputs.gram is not None
        plain = output_error(weight, rounded(weight, 128), inputs.rows)
        assert 0.02 < plain < 0.3 and output_error(weight, weight, inputs.rows) == 0
        every = list(range(weight.shape[1]))
        assert output_error(weight, rounded_except(weight, 128, every), inputs.rows) == 0
        assert output_error(weight, rounded_except(weight, 128, every[:100]), inputs.rows) < plain
    assert list(layer.readers("mlp.gate_proj").weights) == ["mlp.gate_proj", "mlp.up_proj"]
    assert list(layer.readers("mlp.gate_proj", only="mlp.up_proj").weights) == ["mlp.up_proj"]
    with pytest.raises(IndexError, match="layers 0 to 7, not 8"):
        look_at_layer("labkit-tiny", 8)

"""What packing the leftovers costs in perplexity: measured against the same model unpacked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from helpers.models import llama, saved
from helpers.vocabulary import byte_level_core, write_tokenizer

from labkit import LLM
from labkit.bench.leftovers import leftover_cost
from labkit.bench.perplexity import compare, perplexity

TEXT = "the cat sat on the mat and the dog sat on the log " * 3
WINDOWS = {"window": 24, "stride": 12}


@pytest.fixture
def path(seed: int, tmp_path: Path) -> Path:
    core = byte_level_core()
    saved(llama(vocab_size=core.get_vocab_size(with_added_tokens=True)), tmp_path)
    write_tokenizer(tmp_path, core)
    return tmp_path


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_cost_is_the_difference_of_two_measurements(path: Path, kind: str) -> None:
    seen = []
    with LLM(path, dtype="float32", quantize_leftovers=kind) as packed, LLM(path, dtype="float32") as plain:
        scored, without = (perplexity(llm, TEXT, max_tokens=60, **WINDOWS) for llm in (packed, plain))
        cost = leftover_cost(packed, plain, scored, TEXT, max_tokens=60, progress=lambda *done: seen.append(done))
        compared = compare(packed, plain, TEXT, max_tokens=60, **WINDOWS)
    assert (scored.quantize_leftovers, without.quantize_leftovers) == (kind, "none")
    assert cost.unpacked_perplexity == without.perplexity and cost.added_perplexity != 0
    assert math.isclose(cost.added_perplexity, scored.perplexity - without.perplexity)
    assert math.isclose(cost.added_percent, 100 * (scored.perplexity / without.perplexity - 1), rel_tol=1e-6)
    assert (cost.agreement_with_unpacked, cost.mean_kl_to_unpacked) == (compared.argmax_agreement, compared.mean_kl)
    assert cost.mean_kl_to_unpacked > 0 and f"packed to {kind}" in cost.notes[-1]
    assert seen[-1] == (59, 59)


def test_int8_costs_less_than_int4(path: Path) -> None:
    divergence = []
    with LLM(path, dtype="float32") as plain:
        for kind in ("int8", "int4"):
            with LLM(path, dtype="float32", quantize_leftovers=kind) as packed:
                scored = perplexity(packed, TEXT, **WINDOWS)
                divergence.append(leftover_cost(packed, plain, scored, TEXT).mean_kl_to_unpacked)
    assert divergence[0] < divergence[1] / 10

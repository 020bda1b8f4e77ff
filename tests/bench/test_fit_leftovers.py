"""The bytes of packed leftovers: as the loader makes them, and by hand for a model of published size."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import LLM
from labkit.bench.fit import fit
from labkit.bench.fit_leftovers import pack_leftovers
from labkit.bench.fit_weights import weigh
from labkit.errors import ConfigError


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_bytes_are_those_of_the_loaded_matrices(tiny_path: Path, kind: str) -> None:
    with LLM(tiny_path, dtype="float32", quantize_leftovers=kind) as llm:
        loaded = sum(linear.nbytes for linear in llm.engine.runner.model.linears.values())
    plain, packed = weigh(tiny_path), pack_leftovers(weigh(tiny_path), kind)
    before = {weight.module.name: weight.nbytes for weight in plain.weights}
    changed = [w for w in packed.weights if not w.module.is_mtp and w.nbytes != before.get(w.module.name, 0)]
    assert sum(weight.nbytes for weight in changed) == loaded
    assert len(changed) == 63 and f"packed to {kind}" in packed.about


def test_a_tied_head_becomes_a_matrix_of_its_own(tiny_path: Path) -> None:
    plain, packed = (
        {weight.module.name: weight.nbytes for weight in pack_leftovers(weigh(tiny_path), kind).weights}
        for kind in ("none", "int4")
    )
    assert "lm_head" not in plain and plain["model.embed_tokens"] == packed["model.embed_tokens"]
    assert packed["lm_head"] == plain["model.embed_tokens"] / 2 * (0.5 + 4 / 128)


def test_what_the_checkpoint_quantized_stays_as_it_is() -> None:
    plain = weigh("Qwen3.5-27B", "g128-awq")
    for before, after in zip(plain.weights, pack_leftovers(plain, "int8").weights, strict=True):
        assert after == before if before.groups else after.nbytes <= before.nbytes


def test_the_head_of_27b_saves_what_it_should() -> None:
    """248,320 x 5120 in fp16 is 2.54 GB over two GPUs; its INT4 copy 4.25 of 16 bits a weight."""
    plain, packed = (fit("Qwen3.5-27B", weights="g128-sym", gpus=2, quantize_leftovers=k) for k in ("none", "int4"))
    head = 248_320 * 5120 * 2 / 2
    gates = 48 * 2 * 48 * 5120 * 2 / 2  # in_proj_b and in_proj_a of 48 layers
    saved = (head + gates) * (1 - 4.25 / 16)
    assert plain.weight_bytes - packed.weight_bytes == pytest.approx(saved, rel=1e-6)
    assert packed.max_tokens > plain.max_tokens


def test_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantize_leftovers is 'int3'"):
        fit("Qwen3.5-27B", quantize_leftovers="int3")

"""``quantize_leftovers``: which matrices are packed, what stays and is named, and what the packed model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, oracle_logits, qwen35, random_ids, saved

from labkit import LLM, SamplingParams
from labkit.errors import ConfigError
from labkit.model.checkpoint.report import LoadReport
from labkit.model.leftovers import Leftovers
from labkit.ops.linear import Linear
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight
from labkit.quant.round_to_nearest import QUANTIZERS

GREEDY = SamplingParams(temperature=0, max_tokens=8)


def linears(llm: LLM) -> dict[str, Linear]:
    return llm.engine.runner.model.linears


def notes(llm: LLM) -> list[str]:
    return llm.engine.checkpoint.report.notes


def pack_by_hand(model: Any, kind: str) -> None:
    """Replace every matrix but the embedding by what the packed one dequantizes to, in fp32."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.in_features % 32 == 0:
            module.weight = torch.nn.Parameter(QUANTIZERS[kind](module.weight.data).dequantize(), requires_grad=False)


@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("make", [llama, qwen35])
def test_logits_are_those_of_the_packed_matrices(seed: int, tmp_path: Path, make: Any, kind: str, tied: bool) -> None:
    model = make(tie_word_embeddings=tied)
    path, ids = saved(model, tmp_path), random_ids(160, 20)
    before = oracle_logits(model, ids)
    if tied:  # the head becomes a matrix of its own
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.data.clone(), requires_grad=False)
    pack_by_hand(model, kind)
    with LLM(path, dtype="float32", quantize_leftovers=kind) as llm:
        ours = llm.logits(ids)
    assert float((ours - oracle_logits(model, ids)).abs().max()) <= 2e-3
    assert float((ours - before).abs().max()) > 2e-2  # it did change something


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_packed_matrices_run_on_kernels(seed: int, tmp_path: Path, kind: str) -> None:
    path, ids = saved(llama(num_hidden_layers=1, head_dim=64), tmp_path), random_ids(160, 3)
    with LLM(path, executor="sim", quantize_leftovers=kind) as llm:
        ours, kernels = llm.logits(ids), {linear.kernel for linear in linears(llm).values()}
    with LLM(path, executor="torch", dtype="float16", quantize_leftovers=kind) as torch_only:  # packs the same halves
        theirs = torch_only.logits(ids)
    assert all(("gemv_int8" if kind == "int8" else "awq_gemv") in kernel for kernel in kernels)
    assert float((ours - theirs).norm() / theirs.norm()) <= 1e-2


def test_none_is_the_default_and_changes_nothing(seed: int, tmp_path: Path) -> None:
    path, ids = saved(llama(), tmp_path), random_ids(160, 9)
    with LLM(path, dtype="float32") as plain, LLM(path, dtype="float32", quantize_leftovers="none") as same:
        assert torch.equal(plain.logits(ids), same.logits(ids)) and not notes(same)


def test_matrices_take_a_quarter_or_half_and_the_report_says_so(tiny_path: Path) -> None:
    sizes, told = {}, {}
    for kind in ("none", "int8", "int4"):
        with LLM(tiny_path, dtype="float32", quantize_leftovers=kind) as llm:
            sizes[kind] = sum(linear.nbytes for linear in linears(llm).values())
            told[kind] = notes(llm)
    halves = sizes["none"] / 2
    assert sizes["int8"] < 0.52 * halves and sizes["int4"] < 0.27 * halves
    assert told["none"] == []
    assert told["int4"][0].startswith("The output head is tied to the embedding; its int4 copy takes 1.1 MB beside the")
    assert told["int4"][-1].startswith("63 matrices packed to int4 by round to nearest: 48.3 MB became 6.4 MB")


def test_what_cannot_be_packed_stays_and_is_named(seed: int, tmp_path: Path) -> None:
    """An MLP of 80: its down projection has 80 inputs, which no group divides; gate and up have 64."""
    path = saved(llama(intermediate_size=80), tmp_path)
    with LLM(path, quantize_leftovers="int8") as llm:
        kept = [note for note in notes(llm) if "is not packed" in note]
        reason = "is not packed to int8: 80 inputs do not divide into groups of 32, 64 or 128."
        assert kept == [f"model.layers.{i}.mlp.down_proj {reason}" for i in range(2)]
        assert llm.generate([1, 2, 3], GREEDY)[0].token_ids


@pytest.mark.slow
def test_a_checkpoints_own_int4_weights_stay_as_they_are(smollm2_path: Path) -> None:
    """SmolLM2 is Q4_1 throughout; only the head, tied to the embedding, is left to pack."""
    with (
        LLM(smollm2_path, dtype="float32") as plain,
        LLM(smollm2_path, dtype="float32", quantize_leftovers="int4") as llm,
    ):
        ours, theirs = linears(llm), linears(plain)
        assert list(ours) == list(theirs)
        changed = [name for name in ours if ours[name].nbytes != theirs[name].nbytes]
        assert changed == ["lm_head (tied to the embedding)"]
        assert notes(llm)[-1].startswith("1 matrix packed to int4")


def leftovers(kind: str, dtype: torch.dtype = torch.bfloat16) -> Leftovers:
    return Leftovers(kind, dtype, LoadReport())


def test_pack_by_kind(seed: int) -> None:
    dense = torch.randn(4, 64).half()
    packed = Int4Weight.from_nibbles(torch.ones(4, 64, dtype=torch.uint8), torch.ones(4, 2, 2).half(), "scale_bias")
    assert leftovers("none").pack("a", dense) is dense
    assert isinstance(leftovers("int4").pack("a", dense), Int4Weight)
    assert isinstance(leftovers("int8").pack("a", dense), Int8Weight)
    assert all(leftovers(kind).pack("a", packed) is packed for kind in ("none", "int4", "int8"))


def test_a_matrix_kept_in_fp32_for_its_range_is_not_packed(seed: int) -> None:
    wide = torch.randn(4, 64) * 1e5
    source = leftovers("int8")
    assert source.pack("a", wide) is wide
    assert source.report.notes == ["a is not packed to int8: half precision would lose its range."]
    assert isinstance(
        leftovers("int8", torch.float32).pack("a", wide), Int8Weight
    )  # the exact path: fp32 is usual there


@pytest.mark.parametrize("kind", ["int3", "", None, True])
def test_another_kind_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="quantize_leftovers is"):
        leftovers(kind)
    with pytest.raises(ConfigError, match="quantize_leftovers is"):
        LLM("labkit-tiny", quantize_leftovers=kind)

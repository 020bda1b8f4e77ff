"""The engine with its kernels on the simulator: same model, same tokens as in torch, and nothing for checks to find."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, qwen35, random_ids, saved
from helpers.packers import write_awq_checkpoint
from helpers.same_tokens import assert_same_tokens, gentle

from labkit import LLM, SamplingParams
from labkit.device import Kernel
from labkit.device.image import Image, find_image
from labkit.device.ladder import Macros
from labkit.engine import runner
from labkit.errors import KernelBuildError
from labkit.ops.linear_candidates import PRODUCTS
from labkit.ops.linear_kernels import KernelLinear
from labkit.quant.int4 import Int4Weight
from labkit.quant.pack import PackedInt4

PROMPT = "The river"
EVERY_MODEL = {"rmsnorm", "add_rmsnorm", "qk_norm_rope_kv"}  # entries of kernels
GDN = {"gdn_conv", "gdn_decode", "gdn_prefill", "gdn_within_chunks", "gated_rmsnorm"}
ATTENTION = {"attention_decode", "attention_prefill"}  # one or the other, or both: as the steps are
FOR_NEWER_GPUS = {("gdn_prefill", "2_chunked")}
Name = tuple[str, str, str]  # operation, rung, macros


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Kernel]]:
    """The kernels that the test launches, in order."""
    kernels: list[Kernel] = []
    launch = Kernel.launch

    def noting(self: Kernel, *arguments: Any) -> None:
        kernels.append(self)
        launch(self, *arguments)

    monkeypatch.setattr(Kernel, "launch", noting)
    yield kernels


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Logits of two fp16 computations that round in different places."""
    return bool((ours - theirs).norm() <= 5e-3 * theirs.norm())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Name]]:
    """The kernels that the engine has compiled before the first request."""
    names: set[Name] = set()

    def noting(op: str, rung: str, macros: Macros) -> Image:
        names.add((op, rung, str(sorted(macros.items()))))
        return find_image(op, rung, macros)

    monkeypatch.setattr(runner, "find_image", noting)
    yield names


def named(kernels: list[Kernel]) -> set[Name]:
    return {(kernel.op, kernel.rung, str(sorted(kernel.macros.items()))) for kernel in kernels}


def entries(kernels: list[Kernel]) -> set[str]:
    """All but those of attention."""
    return {kernel.entry for kernel in kernels if kernel.op not in ATTENTION}


def check_made(launched: list[Kernel], made: set[Name]) -> None:
    """All that ran was there before; what did not run is for steps with other numbers of rows."""
    assert named(launched) <= made
    idle = {(op, rung) for op, rung, _ in made - named(launched)}
    assert {op for op, _ in idle - FOR_NEWER_GPUS} <= {*PRODUCTS, *ATTENTION}


def test_labkit_tiny_on_the_simulator(tiny_path: Path, launched: list[Kernel], made: set[Name]) -> None:
    with LLM(tiny_path, executor="torch", dtype="float16") as llm:
        expected = llm.logits(PROMPT)
        [answer] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=2))
    assert not launched and not made
    with LLM(tiny_path, executor="sim") as llm:
        assert llm.engine.config.torch_dtype == torch.float16
        ours = llm.logits(PROMPT)
        [simulated] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=2))
        assert close(ours, expected)
        assert simulated.token_ids == answer.token_ids
    check_made(launched, made)
    assert entries(launched) == {*EVERY_MODEL, *GDN, "silu_mul", "gemv_half"}
    assert {op for op, *_ in made} & set(PRODUCTS) == {"gemv_half"}


@pytest.mark.parametrize("kv", ["fp16", "int4"])
def test_a_random_hybrid_in_ragged_batches(kv: str, tmp_path: Path, seed: int) -> None:
    """Prompts around the ends of chunks, cut anywhere, beside decodes; slots that others had before."""
    sizes = {"linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_value_heads": 4}
    path = saved(gentle(qwen35(head_dim=64, **sizes)), tmp_path)
    prompts = [random_ids(160, count) for count in (1, 63, 70, 2)]
    limits = {"prefill_tokens": 50, "mixed_prefill_tokens": 20, "decode_batch_size": 2, "kv_cache_dtype": kv}
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with LLM(path, executor="sim", **limits) as llm:  # type: ignore[arg-type]
        ours = llm.generate(prompts, params)
    with LLM(path, executor="torch", dtype="float16", **limits) as llm:  # type: ignore[arg-type]
        theirs = llm.generate(prompts, params)
        for prompt, answer, other in zip(prompts, ours, theirs, strict=True):
            assert_same_tokens(llm, prompt, answer.token_ids, other.token_ids, kv)


def test_a_random_llama_on_the_simulator(tmp_path: Path, launched: list[Kernel], made: set[Name], seed: int) -> None:
    path, ids = saved(llama(head_dim=64), tmp_path), random_ids(160, 70)  # the prompt fills a page and begins another
    with LLM(path, executor="torch", dtype="float16") as llm:
        expected = llm.logits(ids)
    with LLM(path, executor="sim", dtype="float16") as llm:
        assert close(llm.logits(ids), expected)
    check_made(launched, made)
    assert entries(launched) == {*EVERY_MODEL, "silu_mul", "gemv_half"}  # the head; 70 rows are the library's


def test_int4_weights_stay_packed_alone_and_run_on_their_kernels(
    tmp_path: Path, launched: list[Kernel], made: set[Name], seed: int
) -> None:
    model = llama(hidden_size=128, intermediate_size=192, head_dim=64)
    write_awq_checkpoint(tmp_path, model, group_size=32, skip=("layers.1.mlp.up_proj",))  # it does not join its gate
    ids, greedy = random_ids(160, 20), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with LLM(tmp_path, executor="torch", dtype="float16") as llm:
        expected = llm.logits(ids)
    gc.collect()
    others = {id(thing) for thing in gc.get_objects() if type(thing) is Int4Weight}  # of other tests in this process
    with LLM(tmp_path, executor="sim") as llm:
        linears = [x for x in llm.engine.runner.model.linears.values() if isinstance(x, KernelLinear)]
        assert {type(linear.weight) for linear in linears} == {PackedInt4, torch.Tensor}
        assert not [x for x in gc.get_objects() if type(x) is Int4Weight and id(x) not in others]
        assert close(llm.logits(ids), expected)
        assert {kernel.rung for kernel in launched if kernel.op == "awq_gemm"} == {"5_large_tile"}
        launched.clear()
        llm.generate(ids[:5], greedy)
    assert {kernel.rung for kernel in launched if kernel.op == "awq_gemm"} == {"4_small_m"}
    assert {"awq_gemv", "awq_gemv_silu_mul"} < entries(launched)  # the second token: one row
    assert named(launched) <= made
    assert {op for op, *_ in made} > {"dequant_int4"}  # for prompts that are longer than these


def test_weights_that_kernels_do_not_take_are_named_in_the_report(tmp_path: Path, seed: int) -> None:
    write_awq_checkpoint(tmp_path, llama(hidden_size=64, intermediate_size=96, head_dim=64), group_size=16)
    ids = random_ids(160, 9)
    with LLM(tmp_path, executor="torch", dtype="float16") as llm:
        expected = llm.logits(ids)
        assert "runs in torch" not in str(llm.engine.checkpoint.report)
    with LLM(tmp_path, executor="sim") as llm:
        assert close(llm.logits(ids), expected)
        notes = [note for note in llm.engine.checkpoint.report.notes if "runs in torch" in note]
    assert len(notes) == 8 and all("groups of 16" in note for note in notes)  # 4 a layer
    assert any("down_proj" in note for note in notes)


@pytest.mark.parametrize("kv", ["auto", "fp16", "int8", "int4", "k8v4"])
def test_every_kv_dtype_gives_the_tokens_of_torch(kv: str, tmp_path: Path, seed: int) -> None:
    """Prompts on both sides of a page's end; the last is prefilled in two chunks, the second beside decodes."""
    path = saved(gentle(llama(num_hidden_layers=1, head_dim=64)), tmp_path)
    prompts = [random_ids(160, count) for count in (1, 63, 70)]
    greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    settings: dict[str, Any] = {"kv_cache_dtype": kv, "prefill_tokens": 100, "mixed_prefill_tokens": 20}
    with LLM(path, executor="sim", **settings) as llm:
        ours = llm.generate(prompts, greedy)
    with LLM(path, executor="torch", dtype="float16", **settings) as llm:
        expected = llm.generate(prompts, greedy)
        for prompt, answer, other in zip(prompts, ours, expected, strict=True):
            assert_same_tokens(llm, prompt, answer.token_ids, other.token_ids, kv)


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["int8", "int4", "k8v4"])
def test_smollm2_on_the_simulator_with_quantized_pages(smollm2_path: Path, kv: str) -> None:
    question, greedy = "The capital of France is", SamplingParams(temperature=0, max_tokens=3)
    with LLM(smollm2_path, executor="sim", kv_cache_dtype=kv) as llm:
        [simulated] = llm.generate(question, greedy)
    with LLM(smollm2_path, executor="torch", dtype="float16", kv_cache_dtype=kv) as llm:
        [answer] = llm.generate(question, greedy)
        prompt = llm.tokenizer.encode_prompt(question)
        assert_same_tokens(llm, prompt, simulated.token_ids, answer.token_ids, kv)


@pytest.mark.slow
def test_smollm2_on_the_simulator(smollm2_path: Path, launched: list[Kernel], made: set[Name]) -> None:
    """Q4_1: scale and bias, groups of 32, and widths that are no power of two."""
    question, greedy = "The capital of France is", SamplingParams(temperature=0, max_tokens=3)
    with LLM(smollm2_path, executor="torch", dtype="float16") as llm:
        expected = llm.logits(question)
        [answer] = llm.generate(question, greedy)
    with LLM(smollm2_path, executor="sim") as llm:
        assert close(llm.logits(question), expected)
        [simulated] = llm.generate(question, greedy)
    assert simulated.token_ids == answer.token_ids
    assert named(launched) <= made
    assert entries(launched) == {*EVERY_MODEL, "silu_mul", "awq_gemv", "awq_gemv_silu_mul", "awq_gemm", "gemv_half"}


def test_kernels_that_cannot_be_had_fail_when_the_engine_is_made(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("image", "compile"):
        monkeypatch.setattr(f"labkit.device.{module}.find_nvrtc", lambda: None)
    monkeypatch.setattr("labkit.device.image.WHEEL_FOLDER", tmp_path / "nowhere")
    monkeypatch.delenv("LABKIT_KERNEL_DIR", raising=False)
    with pytest.raises(KernelBuildError, match="no NVRTC"):
        LLM(tiny_path, executor="sim")
    with LLM(tiny_path, executor="torch") as llm:
        assert llm.logits(PROMPT).shape[0]

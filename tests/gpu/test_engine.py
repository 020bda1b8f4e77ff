"""The whole engine on a GPU: the tokens that torch gives on the CPU, for every KV dtype, in batches, and preempted."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.gpu_models import (
    GROUPS,
    KV_DTYPES,
    LEFTOVERS,
    LENGTHS,
    LIMITS,
    MODELS,
    QUANTIZED_LENGTHS,
    prompts_of,
    quantized_model,
    random_model,
)
from helpers.same_tokens import assert_same_tokens

from labkit import LLM, SamplingParams
from labkit.engine.batch import Batch
from labkit.engine.runner import StepLogits

TEXTS = ["The capital of France is", "In the beginning", "def main():\n", "A"]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def compare(path: Path, prompts: list[list[int]], count: int, dtype: str, **settings: Any) -> None:
    """``count`` greedy tokens of all prompts together, on the GPU and in torch on the CPU."""
    with LLM(path, executor="cuda", **settings) as llm:
        assert llm.engine.runner.device.type == "cuda"
        ours = llm.generate(prompts, greedy(count))
    with LLM(path, executor="torch", dtype=dtype, **settings) as llm:
        theirs = llm.generate(prompts, greedy(count))
        for prompt, answer, other in zip(prompts, ours, theirs, strict=True):
            assert_same_tokens(llm, prompt, answer.token_ids, other.token_ids, settings.get("kv_cache_dtype", "auto"))


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_smollm2(kv: str, smollm2_path: Path) -> None:
    with LLM(smollm2_path, executor="torch", dtype="float32") as llm:
        prompts = [llm.tokenizer.encode_prompt(text) for text in TEXTS]
    compare(smollm2_path, prompts, 16, "float16", kv_cache_dtype=kv)


def test_smollm2_against_single_precision(smollm2_path: Path) -> None:
    with LLM(smollm2_path, executor="torch", dtype="float32") as llm:
        expected = llm.logits(TEXTS[0])
        [answer] = llm.generate(TEXTS[0], greedy(16))
        prompt = llm.tokenizer.encode_prompt(TEXTS[0])
        with LLM(smollm2_path) as on_gpu:  # auto takes the GPU
            assert on_gpu.engine.config.placement.executor == "cuda"
            assert (on_gpu.logits(TEXTS[0]) - expected).norm() <= 5e-3 * expected.norm()
            [ours] = on_gpu.generate(TEXTS[0], greedy(16))
        assert_same_tokens(llm, prompt, ours.token_ids, answer.token_ids)


def test_labkit_tiny(tiny_path: Path) -> None:
    with LLM(tiny_path, executor="torch", dtype="float32") as llm:
        prompts = [llm.tokenizer.encode_prompt(text) for text in TEXTS]
    for dtype in ("float16", "float32"):
        compare(tiny_path, prompts, 12, dtype, kv_cache_dtype="fp16")


@pytest.mark.parametrize("kv", KV_DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_random_models_in_batches(name: str, kv: str, tmp_path: Path, seed: int) -> None:
    """Prompts around the ends of pages, in chunks that end anywhere, beside decodes."""
    path = random_model(name, tmp_path)
    compare(path, prompts_of(LENGTHS), 6, "float16", kv_cache_dtype=kv, **LIMITS)


@pytest.mark.parametrize("leftovers", LEFTOVERS)
@pytest.mark.parametrize("group", GROUPS)
def test_quantized_weights(leftovers: str, group: int, tmp_path: Path, seed: int) -> None:
    path = quantized_model(group, tmp_path)
    compare(path, prompts_of(QUANTIZED_LENGTHS), 6, "float16", quantize_leftovers=leftovers)


@pytest.mark.parametrize("name", ["llama, heads of 64", "qwen3.5"])
def test_preempted_and_recomputed(name: str, tmp_path: Path, seed: int) -> None:
    path, prompts = random_model(name, tmp_path), prompts_of((60,) * 4)
    preempted = []
    with LLM(path, executor="cuda") as llm:
        expected = llm.generate(prompts, greedy(12))
    with LLM(path, executor="cuda", num_pages=5, max_seq_len=128) as llm:
        engine = llm.engine
        run = engine.runner.run

        def noting(batch: Batch, *arguments: Any) -> StepLogits:
            preempted.extend(batch.preempted)
            return run(batch, *arguments)

        engine.runner.run = noting  # type: ignore[method-assign]
        outputs = llm.generate(prompts, greedy(12))
        assert preempted
        for prompt, output, other in zip(prompts, outputs, expected, strict=True):
            assert_same_tokens(llm, prompt, output.token_ids, other.token_ids)


@contextmanager
def no_waiting() -> Iterator[None]:
    """torch raises where it would wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kv", ["auto", "int4"])
@pytest.mark.parametrize("name", ["llama, heads of 64", "qwen3.5"])
def test_the_model_never_waits_for_the_gpu(name: str, kv: str, tmp_path: Path, seed: int) -> None:
    path, prompts = random_model(name, tmp_path), prompts_of((3, 70))
    with LLM(path, executor="cuda", kv_cache_dtype=kv, mixed_prefill_tokens=20) as llm:
        llm.generate(prompts, greedy(3))  # what is compiled and allocated once
        engine, steps = llm.engine, []
        run = engine.runner.run

        def watched(batch: Batch, *arguments: Any) -> StepLogits:
            steps.append(batch.num_tokens)
            with no_waiting():
                return run(batch, *arguments)

        engine.runner.run = watched  # type: ignore[method-assign]
        llm.generate(prompts, greedy(3))
        assert len(steps) >= 3


def test_calls_from_several_threads(tmp_path: Path, seed: int) -> None:
    path, prompts = random_model("llama, heads of 64", tmp_path), prompts_of(tuple(range(20, 26)))
    with LLM(path, executor="cuda") as llm:
        expected = [llm.generate([prompt], greedy(5))[0].token_ids for prompt in prompts]
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda prompt: llm.generate([prompt], greedy(5))[0].token_ids, prompts))
        for prompt, ours, theirs in zip(prompts, answers, expected, strict=True):
            assert_same_tokens(llm, prompt, ours, theirs)


def test_sampling_is_reproducible(tmp_path: Path, seed: int) -> None:
    path, [prompt] = random_model("llama, heads of 64", tmp_path), prompts_of((9,))
    params = SamplingParams(temperature=1, top_p=0.9, seed=7, max_tokens=20, ignore_eos=True, logprobs=3)
    with LLM(path, executor="cuda") as llm:
        [first], [second] = llm.generate([prompt], params), llm.generate([prompt], params)
    assert first.token_ids == second.token_ids


def test_the_torch_executor_stays_on_the_cpu(tiny_path: Path) -> None:
    before = torch.cuda.memory_allocated()
    with LLM(tiny_path, executor="torch") as llm:
        llm.generate("A", greedy(2))
        assert torch.cuda.memory_allocated() == before and llm.engine.runner.device.type == "cpu"


def test_memory_comes_back(tiny_path: Path) -> None:
    sizes = []
    for _ in range(3):
        with LLM(tiny_path, executor="cuda", num_pages=500) as llm:
            llm.generate("A", greedy(2))
        del llm
        sizes.append(torch.cuda.memory_allocated())
    assert sizes[2] == sizes[1], f"{sizes} bytes"

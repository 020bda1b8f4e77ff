"""The engine on a GPU, which is pretended here: everything lies there, little passes, and the tokens are the same."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, qwen35, random_ids, saved
from helpers.packers import write_awq_checkpoint
from helpers.pretend_gpu import GPU, GpuTensor, PretendedGpu, pretend_gpu
from helpers.same_tokens import assert_same_tokens, gentle

from labkit import LLM, SamplingParams
from labkit.engine.core import Engine

VOCABULARY = 160
SMALL = {"num_hidden_layers": 1, "head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
HEADS = {"linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_key_heads": 1, "linear_num_value_heads": 2}
HYBRID = {**SMALL, **HEADS, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
MODELS = {"llama": (llama, SMALL), "qwen3.5": (qwen35, HYBRID)}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    with pretend_gpu(monkeypatch) as pretended:
        yield pretended


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def model_at(folder: Path, name: str) -> Path:
    make, settings = MODELS[name]
    return saved(gentle(make(**settings)), folder)


def tensors_of(root: Any) -> Iterator[torch.Tensor]:
    """Every tensor that can be reached from an object through attributes and containers of labkit."""
    seen, left = set[int](), [root]
    while left:
        thing = left.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, list | tuple | set):
            left += thing
        elif isinstance(thing, dict):
            left += thing.values()
        elif type(thing).__module__.startswith("labkit."):
            left += gc.get_referents(thing)


@pytest.mark.parametrize(
    ("name", "kv"),
    [("llama", "auto"), ("llama", "int8"), ("llama", "int4"), ("qwen3.5", "fp16"), ("qwen3.5", "k8v4")],
)
def test_same_tokens_as_in_torch(name: str, kv: str, gpu: PretendedGpu, tmp_path: Path, seed: int) -> None:
    """Prompts of several lengths at once: prefill, decode, and both in one step."""
    path = model_at(tmp_path, name)
    prompts = [random_ids(VOCABULARY, count) for count in (1, 5, 66)]
    settings: dict[str, Any] = {"kv_cache_dtype": kv, "prefill_tokens": 40, "mixed_prefill_tokens": 16}
    with LLM(path, executor="torch", dtype="float16", **settings) as llm:
        assert not any(isinstance(tensor, GpuTensor) for tensor in tensors_of(llm.engine.runner))
        expected = llm.generate(prompts, greedy(3))
        assert not gpu.launches
        with LLM(path, executor="cuda", **settings) as on_gpu:
            answers = on_gpu.generate(prompts, greedy(3))
            for prompt, answer, other in zip(prompts, answers, expected, strict=True):
                assert_same_tokens(llm, prompt, answer.token_ids, other.token_ids, kv)
    assert "rmsnorm" in {launch.split("/")[0] for launch in gpu.launches}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_moves_its_numbers_once_and_waits_once(name: str, gpu: PretendedGpu, tmp_path: Path, seed: int) -> None:
    with LLM(model_at(tmp_path, name), executor="cuda", mixed_prefill_tokens=8) as llm:
        engine = llm.engine
        engine.submit(random_ids(VOCABULARY, 3), greedy(4))
        engine.step()
        engine.submit(random_ids(VOCABULARY, 20), greedy(4))  # prefilled in parts, beside a decode
        while engine.has_work:
            gpu.clear()
            engine.step()
            assert gpu.reads == ["tolist"], gpu.reads  # the sampled tokens
            assert gpu.uploads == ["to"], gpu.uploads


def test_shaped_rows_come_over_in_one_copy(gpu: PretendedGpu, tmp_path: Path, seed: int) -> None:
    path, prompt = model_at(tmp_path, "llama"), random_ids(VOCABULARY, 4)
    params = SamplingParams(temperature=0.7, seed=5, max_tokens=3, ignore_eos=True, n=2, logprobs=2)
    with LLM(path, executor="cuda") as llm:
        llm.engine.submit(prompt, params)
        llm.engine.step()
        gpu.clear()
        llm.engine.step()
        assert gpu.reads == ["tolist", "cpu"]
        [output] = llm.generate([prompt], params)
    assert len(output.completions) == 2 and all(len(choice.token_ids) == 3 for choice in output.completions)


def test_logits_come_to_the_host(gpu: PretendedGpu, tmp_path: Path, seed: int) -> None:
    path, ids = model_at(tmp_path, "llama"), random_ids(VOCABULARY, 7)
    with LLM(path, executor="torch", dtype="float16") as llm:
        expected = llm.logits(ids)
    with LLM(path, executor="cuda") as llm:
        ours = llm.logits(ids)
    assert ours.device.type == "cpu" and ours.dtype == torch.float32
    assert (ours - expected).norm() <= 5e-3 * expected.norm()


@pytest.mark.parametrize("leftovers", ["none", "int4", "int8"])
@pytest.mark.parametrize("group", [16, 32])
def test_all_weights_and_caches_lie_on_the_gpu(
    leftovers: str, group: int, gpu: PretendedGpu, tmp_path: Path, seed: int
) -> None:
    """Groups of 16 are none that kernels take: such weights are dequantized in torch, there too."""
    model = llama(**SMALL, hidden_size=128, intermediate_size=192)
    write_awq_checkpoint(tmp_path, model, group_size=group, skip=("up_proj",))
    ids = random_ids(VOCABULARY, 5)
    with LLM(tmp_path, executor="torch", dtype="float16", quantize_leftovers=leftovers) as llm:
        expected = llm.logits(ids)
    with LLM(tmp_path, executor="cuda", quantize_leftovers=leftovers, kv_cache_dtype="int4") as llm:
        llm.logits(ids)
        found = list(tensors_of(llm.engine.runner))
        assert len(found) > 15
        assert not [tuple(tensor.shape) for tensor in found if tensor.numel() and tensor.device != GPU]
    with LLM(tmp_path, executor="cuda", quantize_leftovers=leftovers) as llm:
        assert (llm.logits(ids) - expected).norm() <= 1e-2 * expected.norm()


def test_preempted_and_recomputed(gpu: PretendedGpu, tmp_path: Path, seed: int) -> None:
    path = model_at(tmp_path, "qwen3.5")
    prompts = [random_ids(VOCABULARY, 62) for _ in range(3)]
    with LLM(path, executor="cuda") as llm:
        expected = [output.token_ids for output in llm.generate(prompts, greedy(5))]
    with LLM(path, executor="cuda", num_pages=4, max_seq_len=128) as llm:
        preempted = _count_preempted(llm.engine)
        outputs = llm.generate(prompts, greedy(5))
        assert preempted
        for prompt, output, tokens in zip(prompts, outputs, expected, strict=True):
            assert_same_tokens(llm, prompt, output.token_ids, tokens)


def _count_preempted(engine: Engine) -> list[int]:
    schedule, seen = engine.scheduler.schedule, list[int]()

    def noting() -> Any:
        batch = schedule()
        seen.extend(seq.seq_id for seq in batch.preempted)
        return batch

    engine.scheduler.schedule = noting  # type: ignore[method-assign]
    return seen

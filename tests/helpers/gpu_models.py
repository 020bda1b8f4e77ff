"""The small random models that tests/gpu runs whole, and the kernels that they launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from helpers.models import llama, qwen35, random_ids, saved
from helpers.packers import write_awq_checkpoint
from helpers.same_tokens import gentle

from labkit import LLM, SamplingParams
from labkit.device import Kernel

VOCABULARY = 160
KV_DTYPES = ("auto", "fp16", "int8", "int4", "k8v4")
HEADS: dict[str, dict[str, Any]] = {
    "64": {"head_dim": 64},
    "128, 6 to 1": {"head_dim": 128, "num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 96},
    "256": {"head_dim": 256},
}
MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{f"llama, heads of {name}": (llama, settings) for name, settings in HEADS.items()},
    "qwen3.5": (qwen35, {"head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128}),
}
LENGTHS = (1, 63, 64, 65, 130, 300)
LIMITS = {"prefill_tokens": 150, "mixed_prefill_tokens": 50}
LEFTOVERS = ("none", "int4", "int8")
GROUPS = (16, 32, 128)
QUANTIZED_LENGTHS = (2, 40, 200)


def random_model(name: str, folder: Path) -> Path:
    """A checkpoint of one of MODELS, from the current seed."""
    make, settings = MODELS[name]
    return saved(gentle(make(**settings)), folder)


def quantized_model(group: int, folder: Path) -> Path:
    """A checkpoint with INT4 weights, but for one projection of each layer."""
    model = gentle(llama(head_dim=64, hidden_size=256, intermediate_size=384))
    write_awq_checkpoint(folder, model, group_size=group, skip=("up_proj",))
    return folder


def prompts_of(lengths: tuple[int, ...]) -> list[list[int]]:
    return [random_ids(VOCABULARY, count) for count in lengths]


def launched_kernels() -> Iterator[Kernel]:
    """What the models launch where a V100 is pretended. Nothing is computed: the tokens are arbitrary."""
    seen: list[Kernel] = []
    with torch.no_grad(), _only_noted(seen):
        for name in MODELS:
            for kv in KV_DTYPES:
                with TemporaryDirectory() as folder:
                    _run(random_model(name, Path(folder)), LENGTHS, kv_cache_dtype=kv, **LIMITS)
        for group in GROUPS:
            for leftovers in LEFTOVERS:
                with TemporaryDirectory() as folder:
                    _run(quantized_model(group, Path(folder)), QUANTIZED_LENGTHS, quantize_leftovers=leftovers)
    yield from dict.fromkeys(seen)


@contextmanager
def _only_noted(seen: list[Kernel]) -> Iterator[None]:
    def launch(self: Kernel, grid: Any, block: Any, arguments: Any, shared_bytes: int = 0) -> None:
        seen.append(self)
        for argument in arguments:
            if hasattr(argument, "tensor"):
                argument.tensor.zero_()  # no NaN may reach the sampler

    with mock.patch.object(Kernel, "launch", launch):
        yield


def _run(path: Path, lengths: tuple[int, ...], **settings: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with LLM(path, executor="sim", **settings) as llm:
        for count in range(1, len(lengths) + 1):
            llm.generate(prompts_of(lengths[:count]), params)

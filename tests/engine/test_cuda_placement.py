"""Where an engine comes to run: on the GPU that can be used, or a typed error that says why not."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from helpers.models import llama, saved
from helpers.pretend_gpu import GPU, pretend_gpu

import labkit.device
from labkit import LLM
from labkit.engine import placement
from labkit.engine.config import EngineConfig
from labkit.engine.sizing import activation_bytes, number_of_pages
from labkit.errors import ConfigError, ExecutorError, UnsupportedModelError
from labkit.model.cache import page_bytes, state_bytes_per_slot
from labkit.model.config import ModelConfig, parse_config
from labkit.model.named import NAMED_CONFIGS

FREE = 8 << 30


def no_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: False)


def no_cupy(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(sys.modules, "labkit.device.cuda", raising=False)
    patch.delattr(labkit.device, "cuda", raising=False)
    patch.setitem(sys.modules, "cupy", None)


def old_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))


def foreign_torch(patch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")

    patch.setattr(torch, "ones", fail)


TROUBLES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "no GPU": (no_gpu, r"torch sees none.*labkit doctor"),
    "no CuPy": (no_cupy, r"CuPy.*pip install 'labkit-v100\[gpu\]'"),
    "an old GPU": (old_gpu, r"capability 6\.1.*CUDA_VISIBLE_DEVICES"),
    "torch without code for the GPU": (foreign_torch, r"no kernel image is available for execution on the device\."),
}


@pytest.mark.parametrize(("breaks", "told"), TROUBLES.values(), ids=TROUBLES.keys())
def test_a_gpu_that_cannot_be_used(
    breaks: Callable[[pytest.MonkeyPatch], None],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tiny_path: Path,
) -> None:
    with pretend_gpu(monkeypatch), monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises(ExecutorError, match=told):
            LLM(tiny_path, executor="cuda")
        with caplog.at_level(logging.WARNING, "labkit"):
            chosen = EngineConfig(tiny_path).placement
        assert (chosen.executor, chosen.device.type) == ("torch", "cpu")
        assert bool(caplog.records) == (breaks is not no_gpu)  # a GPU that lies idle is worth a word
        assert EngineConfig(tiny_path).torch_dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("executor", "dtype", "expected"),
    [
        ("auto", "auto", ("cuda", GPU, torch.float16)),
        ("auto", "float16", ("cuda", GPU, torch.float16)),
        ("auto", "float32", ("torch", placement.CPU, torch.float32)),
        ("auto", "bfloat16", ("torch", placement.CPU, torch.bfloat16)),
        ("torch", "auto", ("torch", placement.CPU, torch.bfloat16)),
        ("torch", "float16", ("torch", placement.CPU, torch.float16)),
        ("sim", "auto", ("sim", placement.CPU, torch.float16)),
        ("cuda", "auto", ("cuda", GPU, torch.float16)),
    ],
)
def test_where_it_runs_beside_a_gpu(
    executor: str, dtype: str, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretend_gpu(monkeypatch):
        config = EngineConfig(executor=executor, dtype=dtype)
        assert (config.placement.executor, config.placement.device, config.torch_dtype) == expected


@pytest.mark.parametrize("executor", ["sim", "cuda"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_kernels_compute_in_half_precision(executor: str, dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"dtype is '{dtype}'.*executor {executor}.*float16"):
        EngineConfig(executor=executor, dtype=dtype)


@pytest.mark.parametrize("executor", ["sim", "cuda"])
def test_heads_that_no_kernel_is_built_for(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    path = saved(llama(num_hidden_layers=1, head_dim=32), tmp_path)
    with pretend_gpu(monkeypatch), pytest.raises(UnsupportedModelError, match=r"32 .* 64, 128 and 256.*torch"):
        LLM(path, executor=executor)
    with LLM(path, executor="torch") as llm:
        assert len(llm.logits([1, 2])) == 2


def model_config(name: str = "Qwen3.5-0.8B") -> ModelConfig:
    return parse_config(NAMED_CONFIGS[name])


def test_pages_follow_the_free_memory_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_config()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: pytest.fail("that is the CPU's memory"))
    with pretend_gpu(monkeypatch, FREE) as gpu:
        config = EngineConfig(executor="cuda", decode_batch_size=64)
        size, states = page_bytes(model, config.kv_format), 64 * state_bytes_per_slot(model, torch.float16)
        pages = number_of_pages(config, model, 1 << 20)
        taken = pages * size + states
        assert taken <= 0.9 * FREE - activation_bytes(config, model) < taken + size
        assert number_of_pages(config, model, 64) == 64  # no more than the batch can fill
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: FREE)  # torch keeps it for its own tensors
        assert number_of_pages(config, model, 1 << 20) > 2 * pages
        gpu.free = 0
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: states)
        with pytest.raises(ConfigError, match="KV pages"):
            number_of_pages(config, model, 1 << 20)


def test_pages_that_were_asked_for_must_fit_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend_gpu(monkeypatch, FREE):
        config = EngineConfig(executor="cuda", num_pages=10, decode_batch_size=1)
        assert number_of_pages(config, model_config(), 4096) == 10
        too_many = EngineConfig(executor="cuda", num_pages=10**7, decode_batch_size=1)
        with pytest.raises(ConfigError, match=r"8\.0 GiB are free"):
            number_of_pages(too_many, model_config(), 4096)

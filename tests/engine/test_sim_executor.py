"""The engine with its kernels on the simulator: same model, same tokens as in torch, and nothing for checks to find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, random_ids, saved

from labkit import LLM, SamplingParams
from labkit.device import Kernel
from labkit.engine.config import EngineConfig
from labkit.errors import ConfigError, KernelBuildError
from labkit.ops.ladders import LADDERS

PROMPT = "The river"


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


def specialised(config: Any) -> set[tuple[str, str]]:
    """What `labkit build --model` would compile for a model, as (operation, macros)."""
    ladders = LADDERS.values()
    return {(x.op, str(sorted(m.items()))) for x in ladders for m in x.specialisations(config, 1, "auto")}


def test_labkit_tiny_on_the_simulator(tiny_path: Path, launched: list[Kernel]) -> None:
    with LLM(tiny_path, executor="torch", dtype="float16") as llm:
        expected = llm.logits(PROMPT)
        [answer] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=3))
    assert not launched
    with LLM(tiny_path, executor="sim") as llm:
        assert llm.engine.config.torch_dtype == torch.float16
        ours = llm.logits(PROMPT)
        [simulated] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=3))
        assert close(ours, expected)
        assert simulated.token_ids == answer.token_ids
        needed = specialised(llm.engine.model_config)
    assert {(kernel.op, str(sorted(kernel.macros.items()))) for kernel in launched} == needed
    assert {kernel.entry for kernel in launched} == {"rmsnorm", "add_rmsnorm", "silu_mul", "rope", "kv_write"}


def test_a_random_llama_on_the_simulator(tmp_path: Path, launched: list[Kernel], seed: int) -> None:
    path, ids = saved(llama(), tmp_path), random_ids(160, 70)  # the prompt fills a page and begins another
    with LLM(path, executor="torch", dtype="float16") as llm:
        expected = llm.logits(ids)
    with LLM(path, executor="sim", dtype="float16") as llm:
        assert close(llm.logits(ids), expected)
        assert {(kernel.op, str(sorted(kernel.macros.items()))) for kernel in launched} == specialised(
            llm.engine.model_config
        )


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_kernels_compute_in_half_precision(dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"dtype is '{dtype}'.*float16"):
        EngineConfig(executor="sim", dtype=dtype)

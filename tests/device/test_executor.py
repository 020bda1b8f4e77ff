"""Which executor an operation gets."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labkit.device import current_executor, executor_for, use_executor
from labkit.errors import ExecutorError

CPU = torch.zeros(1)
GPU: Any = SimpleNamespace(is_cuda=True)  # all that executor_for asks a tensor


@pytest.mark.parametrize(
    ("chosen", "cpu", "gpu"),
    [("auto", "torch", "cuda"), ("torch", "torch", "torch"), ("sim", "sim", "cuda"), ("cuda", None, "cuda")],
)
def test_tensors_and_choice_decide(chosen: str, cpu: str | None, gpu: str) -> None:
    with use_executor(chosen):
        assert current_executor() == chosen
        assert executor_for(GPU) == executor_for(CPU, GPU) == gpu
        if cpu is None:
            with pytest.raises(ExecutorError, match="CPU memory"):
                executor_for(CPU)
        else:
            assert executor_for(CPU) == cpu
    assert current_executor() == "auto"


def test_choices_nest_and_survive_errors() -> None:
    with use_executor("sim"):
        with pytest.raises(RuntimeError, match="mine"), use_executor("torch"):
            raise RuntimeError("mine")
        assert executor_for(CPU) == "sim"


def test_another_thread_chooses_for_itself() -> None:
    seen: list[str] = []
    with use_executor("sim"):
        worker = threading.Thread(target=lambda: seen.append(executor_for(CPU)))
        worker.start()
        worker.join()
    assert seen == ["torch"]


def test_unknown_executors_are_refused() -> None:
    with pytest.raises(ExecutorError, match="auto, torch, sim, cuda"), use_executor("gpu"):
        pass

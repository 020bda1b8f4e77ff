"""Where an operation runs: in torch, on the simulator, or on the GPU.

Tensors decide, and the choice of the moment: tensors on a GPU run there, tensors on the CPU run in torch. Under
``use_executor("sim")`` CPU tensors go to the simulator; under ``use_executor("torch")`` everything runs in torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from labkit.errors import ExecutorError

EXECUTORS = ("auto", "torch", "sim", "cuda")

_chosen: ContextVar[str] = ContextVar("executor", default="auto")


def current_executor() -> str:
    """What ``use_executor`` chose for this thread or task; "auto" outside of it."""
    return _chosen.get()


@contextmanager
def use_executor(name: str) -> Iterator[None]:
    """Operations inside run on this executor: "auto", "torch", "sim" or "cuda". Raises ExecutorError for another."""
    if name not in EXECUTORS:
        raise ExecutorError(f"There is no executor {name!r}.", cure=f"Choose one of: {', '.join(EXECUTORS)}.")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def executor_for(*tensors: Any) -> str:
    """The executor of an operation on these torch tensors: "torch", "sim" or "cuda".

    Raises ExecutorError where the choice of the moment cannot run them: CPU tensors under "cuda".
    """
    chosen = _chosen.get()
    if chosen == "torch":
        return "torch"
    for tensor in tensors:
        if getattr(tensor, "is_cuda", False):  # what is no tensor is for the operation to refuse
            return "cuda"
    if chosen == "cuda":
        raise ExecutorError("The executor is cuda, but the tensors lie in CPU memory.", cure="Move them with .cuda().")
    return "sim" if chosen == "sim" else "torch"

"""Where an engine runs: which executor, and on which device its weights, pages and states lie."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from labkit.errors import ExecutorError

logger = logging.getLogger("labkit")

EXECUTORS = ("auto", "torch", "sim", "cuda")
KERNEL_EXECUTORS = ("sim", "cuda")  # the kernels that they run take fp16 activations
KERNEL_DTYPES = ("auto", "float16")
OLDEST = (7, 0)  # compute capability
CPU = torch.device("cpu")
ELSEWHERE = 'labkit doctor says what is missing; executor "torch" runs on the CPU.'


@dataclass(frozen=True)
class Placement:
    """The executor, one of "torch", "sim" and "cuda", and where the tensors lie: "torch" is on the CPU, always."""

    executor: str
    device: torch.device


def place_engine(executor: str, dtype: str) -> Placement:
    """The placement for an executor and a dtype as EngineConfig names them.

    "auto" takes the GPU where it can be used and ``dtype`` lets its kernels run, else torch on the CPU; a GPU that is
    there and cannot be used is logged with the reason. Raises ExecutorError for "cuda" where there is no usable GPU.
    """
    if executor == "cuda":
        return Placement(executor, find_gpu())
    if executor == "auto" and dtype in KERNEL_DTYPES and torch.cuda.is_available():
        try:
            return Placement("cuda", find_gpu())
        except ExecutorError as error:
            logger.warning("The engine runs on the CPU. %s", error)
    return Placement("sim" if executor == "sim" else "torch", CPU)


def find_gpu() -> torch.device:
    """The current GPU, once torch has computed on it and CuPy, which launches the kernels, is there.

    Raises ExecutorError, which says what is missing and what to do.
    """
    if not torch.cuda.is_available():
        raise ExecutorError("The executor cuda needs an NVIDIA GPU, and torch sees none.", cure=ELSEWHERE)
    index = torch.cuda.current_device()
    major, minor = torch.cuda.get_device_capability(index)
    if (major, minor) < OLDEST:
        message = f"{torch.cuda.get_device_name(index)} has compute capability {major}.{minor}; the kernels need 7.0."
        raise ExecutorError(message, cure='Choose another GPU with CUDA_VISIBLE_DEVICES, or executor "torch".')
    device = torch.device("cuda", index)
    _try_torch(device)
    from labkit.device import cuda  # noqa: F401  - raises ExecutorError where CuPy cannot be imported

    return device


def _try_torch(device: torch.device) -> None:
    """A build of torch without code for this GPU fails at its first operation."""
    try:
        torch.ones(1, device=device).add_(1).item()
    except RuntimeError as error:
        told = next(iter(str(error).splitlines()), "it gave no reason")
        raise ExecutorError(f"torch cannot compute on GPU {device.index}: {told}.", cure=ELSEWHERE) from error

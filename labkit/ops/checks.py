"""What every kernel launch asks first: do the shapes and dtypes fit, how wide may a load be, how many threads.

Kernels index memory without asking again: a wrong shape that got this far would read somebody else's numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError

WARP = 32
MOST_THREADS = 1024  # of a block, on every NVIDIA GPU
WIDEST_LOAD = 16  # bytes that one instruction of one thread moves at most

Tensors = dict[str, tuple[Tensor, torch.dtype, tuple[str | int, ...]]]


def named_sizes(op: str, tensors: Tensors) -> dict[str, int]:
    """The sizes of an operation's named dimensions, after a look at every tensor.

    tensors: name -> (tensor, dtype, dimensions); a dimension is a name, the same size wherever it stands, or a number.
    Raises KernelArgumentError, which names the tensor, its shape and what was expected.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, dtype, dimensions) in tensors.items():
        check_tensor(op, name, tensor)
        shape = tensor.shape
        if tensor.dtype != dtype or len(shape) != len(dimensions):
            raise _mismatch(op, name, tensors)
        for dimension, size in zip(dimensions, shape, strict=True):
            expected = sizes.setdefault(dimension, size) if isinstance(dimension, str) else dimension
            if expected != size:
                raise _mismatch(op, name, tensors)
    return sizes


def check_tensor(op: str, name: str, tensor: Any) -> None:
    """Raises KernelArgumentError for what is no tensor, has no plain memory, or waits for a gradient."""
    if not isinstance(tensor, Tensor):
        raise KernelArgumentError(f"{op}: {name} is a {type(tensor).__name__}.", cure="Give a torch tensor.")
    if tensor.layout != torch.strided:
        raise KernelArgumentError(f"{op}: {name} is {_short(tensor.layout)}.", cure="Call .to_dense() on it.")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise KernelArgumentError(
            f"{op}: {name} requires a gradient, which its kernels do not compute.",
            cure="Work under torch.no_grad(), detach it, or use the executor torch.",
        )


def _mismatch(op: str, name: str, tensors: Tensors) -> KernelArgumentError:
    tensor, dtype, dimensions = tensors[name]
    if tensor.dtype != dtype:
        problem = f"is {_short(tensor.dtype)}; its kernels take {_short(dtype)}"
        return KernelArgumentError(f"{op}: {name} {problem}.", cure=f"Convert {name}, or use the executor torch.")
    known: dict[str | int, int] = {}
    for earlier in itertools.takewhile(lambda other: other != name, tensors):
        known |= dict(zip(tensors[earlier][2], tensors[earlier][0].shape, strict=True))
    wanted = ", ".join(f"{d} = {known[d]}" if isinstance(d, str) and d in known else str(d) for d in dimensions)
    problem = f"has shape {list(tensor.shape)}; expected is [{wanted}]"
    return KernelArgumentError(f"{op}: {name} {problem}.", cure="Check the shapes.")


def _short(what: torch.dtype | torch.layout) -> str:
    return str(what).removeprefix("torch.")


def chosen_rung(op: str, rung: str | None, rungs: Sequence[str]) -> str:
    """The rung that was asked for, the last one for None. Raises KernelArgumentError for what is no name."""
    if rung is None:
        return rungs[-1]
    if not isinstance(rung, str) or not rung:
        raise KernelArgumentError(f"{op}: the rung is {rung!r}.", cure=f"Choose one of: {', '.join(rungs)}.")
    return rung


def number(op: str, name: str, value: Any) -> float:
    """A Python float from a number of any kind. Raises KernelArgumentError for others, and for too large ones."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except OverflowError:
        raise KernelArgumentError(f"{op}: {name} is too large for a float.", cure="Give a smaller number.") from None
    except (TypeError, ValueError, RuntimeError):
        message = f"{op}: {name} is a {type(value).__name__}."
        raise KernelArgumentError(message, cure="Give one Python float.") from None


def vector_width(most: int, counts: Sequence[int], tensors: Sequence[Tensor]) -> int:
    """How many neighbouring elements may move together: a power of two, at most ``most``, itself one.

    It divides every one of ``counts`` (row lengths and strides, in elements), and the tensors' addresses are multiples
    of what one instruction then moves. A view that starts at an odd element gets 1: slower, never wrong. Raises
    KernelArgumentError for a tensor that starts inside an element's place, which no GPU can load.
    """
    bits = most
    for count in counts:
        bits |= count
    for tensor in tensors:
        elements, odd = divmod(tensor.data_ptr() % WIDEST_LOAD, tensor.element_size())
        if odd:
            message = f"A {_short(tensor.dtype)} tensor starts at address {tensor.data_ptr():#x}."
            raise KernelArgumentError(message, cure="Call .clone() on it: elements lie at multiples of their size.")
        bits |= elements
    return bits & -bits  # the lowest bit that is set in any of them


def block_size(items: int, most: int = 256) -> int:
    """Threads of a block for ``items`` pieces of work: a power of two from one warp to ``most``."""
    return max(WARP, min(most, 1 << (items - 1).bit_length()))


def dense_rows(op: str, name: str, x: Tensor) -> Tensor:
    """``x`` [..., D] as [rows, D], one row after the other in memory; copied only where it does not lie so.

    Raises KernelArgumentError for a tensor without dimensions.
    """
    check_tensor(op, name, x)
    if not x.dim():
        raise KernelArgumentError(f"{op}: {name} has no dimensions.", cure="Give rows: shape [..., D].")
    return x.reshape(x.shape[:-1].numel(), x.shape[-1]).contiguous()


def aligned(x: Tensor, nbytes: int = WIDEST_LOAD) -> Tensor:
    """``x``, or a copy where it is not dense or does not start at a multiple of ``nbytes``."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % nbytes else x


def span(x: Tensor) -> Tensor:
    """The stretch of memory from the first element of a strided view to its last, as a dense vector.

    A kernel that is told the strides may be given this: launches take dense tensors only.
    """
    if not x.numel():
        return x.reshape(0)
    elements = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((elements,), (1,))

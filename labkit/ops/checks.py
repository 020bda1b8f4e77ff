"""What every kernel launch asks first: do the shapes and dtypes fit, how wide may a load be, how many threads.

Kernels index memory without asking again: a wrong shape that got this far would read somebody else's numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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
        shape = tensor.shape
        if tensor.dtype != dtype or len(shape) != len(dimensions):
            raise _mismatch(op, name, tensors)
        for dimension, size in zip(dimensions, shape, strict=True):
            expected = sizes.setdefault(dimension, size) if isinstance(dimension, str) else dimension
            if expected != size:
                raise _mismatch(op, name, tensors)
    return sizes


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


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def vector_width(most: int, counts: Sequence[int], tensors: Sequence[Tensor]) -> int:
    """How many neighbouring elements may move together: a power of two, at most ``most``, itself one.

    It divides every one of ``counts`` (row lengths and strides, in elements), and the tensors' addresses are multiples
    of what one instruction then moves. A view that starts at an odd element gets 1: slower, never wrong.
    """
    bits = most
    for count in counts:
        bits |= count
    for tensor in tensors:
        bits |= tensor.data_ptr() % WIDEST_LOAD // tensor.element_size()
    return bits & -bits  # the lowest bit that is set in any of them


def block_size(items: int, most: int = 256) -> int:
    """Threads of a block for ``items`` pieces of work: a power of two from one warp to ``most``."""
    return max(WARP, min(most, 1 << (items - 1).bit_length()))


def dense_rows(x: Tensor) -> Tensor:
    """``x`` [..., D] as [rows, D], one row after the other in memory; copied only where it does not lie so."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def span(x: Tensor) -> Tensor:
    """The stretch of memory from the first element of a strided view to its last, as a dense vector.

    A kernel that is told the strides may be given this: launches take dense tensors only.
    """
    elements = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((elements,), (1,))

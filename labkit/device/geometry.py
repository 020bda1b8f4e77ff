"""Grid and block of a launch, held against the limits of the V100: what runs here must run there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index

from labkit.device.occupancy import DEFAULT_BLOCK_SHARED, MAX_BLOCK_SHARED, MAX_BLOCK_THREADS
from labkit.errors import KernelArgumentError

Size = int | Sequence[int]
Dimensions = tuple[int, int, int]

# CUDA C++ Programming Guide 12, "Technical Specifications per Compute Capability", 7.0
MAX_GRID = (2**31 - 1, 65_535, 65_535)
MAX_BLOCK = (1024, 1024, 64)


def dimensions(kernel: str, what: str, size: Size) -> Dimensions:
    """(x, y, z) from an int or one to three of them. Raises KernelArgumentError outside a V100's limits."""
    limits = MAX_GRID if what == "grid" else MAX_BLOCK
    x, y, z = (size, 1, 1) if type(size) is int else _three(kernel, what, size)
    if not (1 <= x <= limits[0] and 1 <= y <= limits[1] and 1 <= z <= limits[2]):
        cure = f"Each dimension is 1 to {', '.join(map(str, limits))}."
        raise KernelArgumentError(f"{kernel}: the {what} {(x, y, z)} is not possible.", cure=cure)
    return x, y, z


def _three(kernel: str, what: str, size: Size) -> Dimensions:
    try:
        given = tuple(map(index, size)) if isinstance(size, Iterable) else (index(size),)
    except TypeError:
        given = ()
    if not 1 <= len(given) <= 3:
        cure = "Give an int, or a tuple of one to three ints."
        raise KernelArgumentError(f"{kernel}: the {what} is {size!r}.", cure=cure)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def check_block(kernel: str, block: Dimensions, max_threads: int | None) -> None:
    """Raises KernelArgumentError if the block has more threads than the hardware, or the kernel, allows."""
    threads = block[0] * block[1] * block[2]
    limit = min(max_threads or MAX_BLOCK_THREADS, MAX_BLOCK_THREADS)
    if threads > limit:
        why = "its launch bounds allow" if max_threads else "a block may have"
        message = f"{kernel}: the block {block} has {threads} threads, more than the {limit} that {why}."
        raise KernelArgumentError(message, cure="Launch smaller blocks.")


def check_shared(kernel: str, static: int, dynamic: int) -> None:
    """Raises KernelArgumentError for more shared memory (bytes) than a block on a V100 can have."""
    try:
        index(dynamic)
    except TypeError:
        message = f"{kernel}: shared_bytes is {dynamic!r}."
        raise KernelArgumentError(message, cure="Give a whole number of bytes.") from None
    if static > DEFAULT_BLOCK_SHARED:
        message = f"{kernel}: {static} bytes of static shared memory; a block has at most {DEFAULT_BLOCK_SHARED}."
        raise KernelArgumentError(message, cure="Make the array `extern __shared__` and give shared_bytes.")
    if dynamic < 0 or static + dynamic > MAX_BLOCK_SHARED:
        message = f"{kernel}: {static} + {dynamic} bytes of shared memory; a block has at most {MAX_BLOCK_SHARED}."
        raise KernelArgumentError(message, cure="Use smaller tiles.")

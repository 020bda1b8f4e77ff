"""Atomic operations, with exactly the results of running the threads one after the other, lowest number first.

Where nobody wants the old values, integer operations on the same address commute and are one NumPy call. Otherwise the
threads are dealt into rounds in which no address occurs twice; a round is one vector operation.

Adding f32 in global memory takes subnormal numbers for zeros and gives none (PTX manual, "atom"; an H200 does so too);
in shared memory it keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim import access
from labkit.sim.buffers import Buffer
from labkit.sim.lanes import split_lanes
from labkit.sim.locate import absolute_index, locate
from labkit.sim.memory import BlockMemory
from labkit.sim.shadows import check_written, mark_block_written, mark_written

if TYPE_CHECKING:
    from labkit.sim.threads import Threads

Array = npt.NDArray[Any]
SIZES = {"f16": 2, "b16": 2, "u16": 2, "f16x2": 4, "u64": 8, "s64": 8, "b64": 8, "f64": 8}
VIEWS = {"s32": np.int32, "s64": np.int64, "f32": np.float32, "f64": np.float64, "f16": np.float16, "f16x2": np.float16}
SMALLEST_NORMAL = np.float32(2.0**-126)
FLUSH_FREE = np.float32(2.0**-102)  # from here on float32 numbers are multiples of the smallest normal one
COMMUTING = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def atomic(
    threads: Threads,
    space: str,
    op: str,
    type: str,
    address: Array,
    offset: int,
    site: int,
    wanted: bool,
    operands: list[Array],
    semantics: str,
    scope: str,
) -> Array | None:
    """One atomic operation per thread; see Threads.atomic. Operands and old values are raw unsigned arrays."""
    run = threads.run
    if wanted:
        run.poll(address, site)
    size = SIZES.get(type, 4)
    if semantics in ("release", "acq_rel"):
        threads.fence(scope, site)
    place = locate(threads, space, address, offset, size, site)
    if place is None:
        return _in_parts(threads, space, op, type, address, offset, site, wanted, operands, size)
    memory, relative = place
    access.watch(threads, memory, "atomic", relative, size, site, operands)
    index, values = _indexes(threads, memory, relative, size, site), [threads.spread(_raw(x, size)) for x in operands]
    if type == "f32" and op == "add" and isinstance(memory, Buffer):
        type = "flushed f32"
    old, changed = apply(memory.words(size), index, op, type, values, wanted)
    run.memory.changes += changed
    if semantics in ("acquire", "acq_rel"):
        threads.fence(scope, site)
    return None if old is None else old.reshape(threads.shape)


def _raw(operand: Array, size: int) -> Array:
    """The bits of an operand as an unsigned integer of the operation's size."""
    return operand.view(f"u{operand.dtype.itemsize}").astype(f"u{size}", copy=False)


def _indexes(threads: Threads, memory: Any, relative: Array, size: int, site: int) -> Array:
    """Word numbers, one per thread; reports words that hold nothing yet, and notes that they do now."""
    check_written(threads, memory, relative, size, site)
    if isinstance(memory, BlockMemory):
        mark_block_written(threads, memory, relative, size)
        relative = absolute_index(threads, memory, relative)
    elif memory.shadow is not None:
        mark_written(memory, relative, size)
    return threads.spread(relative >> size.bit_length() - 1)


def _in_parts(
    threads: Threads,
    space: str,
    op: str,
    type: str,
    address: Array,
    offset: int,
    site: int,
    wanted: bool,
    operands: list[Array],
    size: int,
) -> Array | None:
    result = np.zeros(threads.count, f"u{size}")
    for positions, part, part_space, addresses in split_lanes(threads, space, address, offset, size, site, "updates"):
        chosen = [threads.spread(operand)[positions][None] for operand in operands]
        old = atomic(part, part_space, op, type, addresses, 0, site, wanted, chosen, "relaxed", "gpu")
        if old is not None:
            result[positions] = old[0]
    return result.reshape(threads.shape) if wanted else None


def apply(
    words: Array, index: Array, op: str, type: str, operands: list[Array], wanted: bool
) -> tuple[Array | None, bool]:
    """Perform the operations on ``words`` (unsigned integers) at ``index``, in order.

    Returns: the old values if wanted, and whether anything may have changed.
    """
    if type == "flushed f32" and not _may_flush(words[index], operands[0]):
        type = "f32"
    if not wanted and op in COMMUTING and type not in ("f16", "f16x2", "flushed f32"):
        view = VIEWS.get(type, words.dtype.type)
        COMMUTING[op].at(words.view(view), index, operands[0].view(view))
        return None, True
    if op == "cas" and not (words[index] == operands[0]).any():
        return (words[index] if wanted else None), False  # all fail, as they mostly do while they wait for a lock
    old, changed = np.empty(index.shape, words.dtype), False
    for chosen in rounds(index):
        place = index[chosen]
        before = words[place]
        old[chosen] = before
        after = _after(op, type, before, [operand[chosen] for operand in operands])
        words[place] = after
        changed = changed or bool((after != before).any())
    return (old if wanted else None), changed


def _may_flush(*values: Array) -> bool:
    """Whether a sum can meet a subnormal number: not if all terms are multiples of the smallest normal one."""
    sizes = [np.abs(each.view(np.float32)) for each in values]
    return any(bool(((size > 0) & (size < FLUSH_FREE)).any()) for size in sizes)


def _flush(bits: Array) -> Array:
    """Subnormal numbers as zeros of their sign."""
    numbers = bits.view(np.float32)
    return np.where(np.abs(numbers) < SMALLEST_NORMAL, np.copysign(np.float32(0), numbers), numbers)


def rounds(index: Array) -> list[Array]:
    """Positions dealt so that each round has every address at most once, and its threads come in their order."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if len(starts) == len(index):
        return [np.arange(len(index))]
    turn = np.arange(len(index)) - np.repeat(starts, np.diff(np.append(starts, len(index))))
    by_turn = order[np.argsort(turn, kind="stable")]
    return np.split(by_turn, np.cumsum(np.bincount(turn))[:-1])


def _after(op: str, type: str, before: Array, operands: list[Array]) -> Array:
    """What a word holds after the operation."""
    value = operands[0]
    if op == "exch":
        return value
    if op == "cas":
        return np.where(before == value, operands[1], before)
    if op == "inc":
        return np.where(before >= value, 0, before + before.dtype.type(1)).astype(before.dtype)
    if op == "dec":
        return np.where((before == 0) | (before > value), value, before - before.dtype.type(1))
    if type == "flushed f32":
        return _flush((_flush(before) + _flush(value)).view(before.dtype)).view(before.dtype)
    view = VIEWS.get(type, before.dtype.type)
    return COMMUTING[op](before.view(view), value.view(view)).view(before.dtype)

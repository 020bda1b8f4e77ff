"""Which bytes have been written: reads of the others are faults.

Structs have gaps between their members, which compilers copy along without anybody having written them. So an access of
several bytes is a fault only if it covers a whole aligned word of four that holds nothing at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.buffers import WRITTEN, Store
from labkit.sim.locate import absolute_index
from labkit.sim.memory import BlockMemory

if TYPE_CHECKING:
    from labkit.sim.threads import Threads

Array = npt.NDArray[Any]


def mark_written(memory: Store, index: Array, total: int) -> None:
    """Note that ``total`` bytes at each byte offset were written."""
    if total <= 8:
        memory.shadow_words(total)[index >> total.bit_length() - 1] = WRITTEN[total]
    else:
        memory.shadow_words(8)[index >> 3] = WRITTEN[8]
        memory.shadow_words(8)[(index >> 3) + 1] = WRITTEN[8]


def mark_block_written(threads: Threads, memory: BlockMemory, relative: Array, total: int) -> None:
    """The same for shared or local memory, at offsets in a block's or thread's own row."""
    if memory.shadow is None:
        return
    memory.dirty = True
    alike = threads.whole and memory is threads.run.shared and relative.shape[0] == 1
    if memory.shadow_rows == 1 and not alike:
        memory.split_shadow()
    if memory.shadow_rows > 1:
        relative = absolute_index(threads, memory, relative)
    mark_written(memory, relative, total)


def check_written(threads: Threads, memory: Any, relative: Array, total: int, site: int) -> None:
    """Report the threads that read something which was never written."""
    if memory.shadow is None:
        return
    if isinstance(memory, BlockMemory):
        index = relative if memory.shadow_rows == 1 else absolute_index(threads, memory, relative)
        name, address = f"{memory.name} memory", relative
    else:
        index, name, address = relative, memory.name, relative + memory.start
    if not _not_fully_written(memory, index, total).any():
        return
    bad = _not_fully_written(memory, index, total) if total < 4 else _holds_nothing(memory, index, total)
    if bad.any():
        text = f"reads {total} bytes of {name} that nothing has written"
        threads.run.report_lanes("uninitialized", site, text, threads, bad, address)


def _not_fully_written(memory: Store, index: Array, total: int) -> Array:
    """The quick test, which mostly finds nothing."""
    if total <= 8:
        return memory.shadow_words(total).take(index >> total.bit_length() - 1) != WRITTEN[total]
    halves = memory.shadow_words(8)
    return (halves.take(index >> 3) != WRITTEN[8]) | (halves.take((index >> 3) + 1) != WRITTEN[8])


def _holds_nothing(memory: Store, index: Array, total: int) -> Array:
    """Where one of the words of four bytes has nothing written in it."""
    words = memory.shadow_words(4)
    return np.logical_or.reduce([words.take((index >> 2) + word) == 0 for word in range(total // 4)])

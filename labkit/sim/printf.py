"""printf from a kernel: the format and the packed arguments are read from simulated memory, thread by thread."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.buffers import ADDRESS_MASK

if TYPE_CHECKING:
    from labkit.sim.threads import Threads

Array = npt.NDArray[Any]
SPECIFIER = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|t|j)?([diouxXcsfFeEgGaAp%])")
LONGEST_TEXT = 4096


def print_all(threads: Threads, format_address: Array, arguments_address: Array, site: int) -> None:
    """Appends what every thread prints, in the order of the threads, to the launch's output."""
    for position in range(threads.count):
        one = threads.part(np.array([position]))
        text = text_at(one, threads.spread(format_address)[position].reshape(1, 1))
        arguments = _Arguments(one, int(threads.spread(arguments_address)[position]), site)
        threads.run.output.append(render(text, arguments))


def text_at(thread: Threads, address: Array) -> str:
    """The zero-terminated text at a generic address; the first thread's where there are several."""
    first = int(address.flat[0])
    buffer = thread.run.memory.find(first)
    if buffer is None:
        return ""
    data = buffer.data[(first & ADDRESS_MASK) - buffer.start : buffer.end - buffer.start][:LONGEST_TEXT]
    return data.tobytes().split(b"\0")[0].decode("utf-8", "replace")


class _Arguments:
    """The packed arguments of one call, in memory: each aligned to its size, integers of 4 or 8 bytes, doubles."""

    def __init__(self, thread: Threads, address: int, site: int) -> None:
        self.thread, self.address, self.site = thread, address, site

    def take(self, size: int, code: str) -> Any:
        self.address = -(-self.address // size) * size
        raw = self.thread.load("generic", np.full((1, 1), self.address, np.uint64), 0, size, 1, self.site)[0]
        self.address += size
        return struct.unpack("<" + code, raw.tobytes())[0]

    def text(self) -> str:
        address = self.take(8, "Q")
        return text_at(self.thread, np.full((1, 1), address, np.uint64)) if address else "(null)"


def render(text: str, arguments: Any) -> str:
    """C's formatting: integer, character, text, floating-point and pointer conversions."""

    def convert(found: re.Match[str]) -> str:
        flags, width, precision, length, kind = found.groups()
        if kind == "%":
            return "%"
        if width == "*":
            width = str(arguments.take(4, "i"))
        if precision == "*":
            precision = str(arguments.take(4, "i"))
        pattern = f"%{flags}{width or ''}{'.' + precision if precision is not None else ''}"
        wide = length in ("l", "ll", "z", "t", "j")
        if kind in "di":
            return (pattern + "d") % arguments.take(8 if wide else 4, "q" if wide else "i")
        if kind in "uoxX":
            return (pattern + ("d" if kind == "u" else kind)) % arguments.take(8 if wide else 4, "Q" if wide else "I")
        if kind == "c":
            return (pattern + "c") % chr(arguments.take(4, "i") & 0xFF)
        if kind == "s":
            return (pattern + "s") % arguments.text()
        if kind == "p":
            return (pattern + "s") % f"{arguments.take(8, 'Q'):#x}"
        value = arguments.take(8, "d")
        return value.hex() if kind in "aA" else (pattern + kind) % value

    return SPECIFIER.sub(convert, text)

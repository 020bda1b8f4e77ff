"""What the checks found: one entry per fault of the program, however many threads ran into it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from labkit.sim.program import Kernel, Site

KINDS = {
    "out-of-bounds": "an access outside every buffer or array",
    "uninitialized": "a read of memory that nothing has written",
    "unwritten-output": "an output that the kernel did not fill",
    "misaligned": "an address that is no multiple of the access's size",
    "shared-race": "two threads use one shared word without a barrier between them",
    "global-race": "two threads use one global word without anything that orders them",
    "missing-fence": "data handed to another block or device without a fence",
    "barrier-divergence": "threads of a block wait at different barriers",
    "invalid-barrier": "a barrier number or a count of threads that cannot work",
    "deadlock": "threads that wait for others which never come",
    "missing-lanes": "lanes of a mask that do not take part",
    "endless": "the step limit was reached",
    "assert": "a failed assert()",
    "trap": "a __trap()",
}
"""Kind -> what it means. Checks may add kinds; these are the ones that labkit itself reports."""

TOLD_BY_LINE = {"missing-lanes"}
HEADERS = {".cuh", ".h", ".hpp", ".hxx", ".inl"}
Line = tuple[str, int, str]  # file, line of the CUDA source or of the PTX, kind of instruction
NO_SITE = Site(index=-1, ptx_line=0, file="", line=0, text="", kind="")


@dataclass(frozen=True)
class Other:
    """The other access of a race: its CUDA line, block and thread (flat numbers)."""

    line: int
    place: str  # the line in words, with the header it stands in
    block: int
    thread: int
    text: str  # the PTX instruction


@dataclass
class Finding:
    """One fault. block and thread are the flat numbers of the first thread that showed it; count: how many did."""

    kind: str
    file: str
    line: int  # 1-based line of the CUDA source; 0 where the PTX has no line information
    text: str  # a sentence that names line, thread and block
    count: int
    site: Site
    block: int | None
    thread: int | None
    address: int | None = None
    other: Other | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        named = {"kind": self.kind, "file": self.file, "line": self.line, "text": self.text, "count": self.count}
        where = {"block": self.block, "thread": self.thread, "address": self.address, "ptx": self.site.text}
        return named | where | {"other": vars(self.other) if self.other else None}

    def __str__(self) -> str:
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return f"{self.kind}: {self.text}{times}"


class Findings:
    """Collects the faults of one launch.

    Args:
        kernel: whose sites the reports name.
        grid, block: the launch's shape, so that threads can be named by their coordinates.
    """

    def __init__(
        self, kernel: Kernel, grid: tuple[int, int, int] = (1, 1, 1), block: tuple[int, int, int] = (1, 1, 1)
    ) -> None:
        self.kernel, self.grid, self.block = kernel, grid, block
        self._by_fault: dict[tuple[Any, ...], Finding] = {}

    def report(
        self,
        kind: str,
        site: int | Site | None,
        text: str,
        *,
        blocks: Any = None,
        threads: Any = None,
        address: Any = None,
        other_site: int | Site | None = None,
        other_thread: int | None = None,
        other_block: int | None = None,
        count: int | None = None,
    ) -> None:
        """Adds a fault, or counts it where it is known: the same kind at the same instruction.

        Races are one fault for two source lines, and missing lanes one for a line: the compiler unrolls loops, and each
        copy would be told again.

        Args:
            kind: one of KINDS.
            site: the instruction at fault; None where no single one is.
            text: what happened, without line, thread and block ("reads 4 bytes behind the end of x").
            blocks, threads: flat numbers (int or arrays) of all threads concerned; the first one is named.
            address: byte address (int, or an array beside threads).
            other_site, other_thread, other_block: the second access of a race.
            count: how often it happened; the number of threads given by default.
        """
        here, there = self._site(site), None if other_site is None else self._site(other_site)
        block, thread = _first(blocks), _first(threads)
        times = max(_size(blocks), _size(threads), 1) if count is None else count
        fault: tuple[Any, ...] = (kind, line_of(here) if kind in TOLD_BY_LINE else here)
        if there is not None:
            fault = (kind, line_of(here), line_of(there))
        known = self._by_fault.get(fault)
        if known is not None:
            known.count += times
            return
        other = None
        if there is not None:
            other = Other(there.line, place(there), _or_zero(other_block), _or_zero(other_thread), there.text)
        sentence = self._sentence(text, here, block, thread, other)
        found = Finding(kind, here.file, here.line, sentence, times, here, block, thread, _first(address), other)
        self._by_fault[fault] = found

    def as_list(self) -> list[Finding]:
        """All faults, in the order of the source."""
        return sorted(self._by_fault.values(), key=lambda each: (each.file, each.line, each.site.index))

    def __len__(self) -> int:
        return len(self._by_fault)

    def _site(self, site: int | Site | None) -> Site:
        if site is None:
            return NO_SITE
        return site if isinstance(site, Site) else self.kernel.sites[site]

    def _sentence(self, text: str, site: Site, block: int | None, thread: int | None, other: Other | None) -> str:
        where = [place(site)] if site is not NO_SITE else []
        if thread is not None:
            where.append(f"thread {self.name_thread(thread)} of block {self.name_block(block or 0)}")
        sentence = f"{', '.join(where)} {text}" if where else text
        if other is None:
            return sentence
        return f"{sentence} (the other: {other.place}, thread {other.thread} of block {other.block})"

    def name_thread(self, thread: int) -> str:
        """A thread's number in its block; with its coordinates where the block has several dimensions."""
        return _named(thread, self.block)

    def name_block(self, block: int) -> str:
        """A block's number in the grid; with its coordinates where the grid has several dimensions."""
        return _named(block, self.grid)


def place(site: Site) -> str:
    """How findings name an instruction: its CUDA line, and the header it stands in; without lines, that of the PTX."""
    if not site.line:
        return f"PTX line {site.ptx_line}"
    file = PurePath(site.file)
    return f"line {site.line} of {file.name}" if file.suffix in HEADERS else f"line {site.line}"


def line_of(site: Site) -> Line:
    """What the copies of one access in an unrolled loop have in common."""
    return (site.file, site.line or site.ptx_line, site.kind)


def _named(number: int, shape: tuple[int, int, int]) -> str:
    x, y, z = shape
    if y == 1 and z == 1:
        return str(number)
    return f"{number} ({number % x}, {number // x % y}, {number // (x * y)})"


def _first(values: Any) -> int | None:
    if values is None:
        return None
    flat = np.asarray(values).reshape(-1)
    return int(flat[0]) if flat.size else None


def _size(values: Any) -> int:
    return 0 if values is None else int(np.asarray(values).size)


def _or_zero(value: int | None) -> int:
    return 0 if value is None else int(value)

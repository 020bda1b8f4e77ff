"""What the assembler says a kernel needs: registers, spills, shared memory. Read from the report of ``ptxas -v``."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
BARRIERS = re.compile(r"used (\d+) barriers")
PROPERTIES = re.compile(r"Function properties for (\S+)")


@dataclass(frozen=True)
class Resources:
    """One kernel on one architecture. Registers of a thread; bytes of a thread (spills, stack) or a block (shared)."""

    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int  # static only
    stack_bytes: int
    barriers: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def parse_report(log: str) -> dict[str, Resources]:
    """The resources of each kernel that a report of ``ptxas -v`` names. Lines of other kinds are passed over."""
    found: dict[str, Resources] = {}
    entry, about, stack = "", "", (0, 0, 0)
    for line in log.splitlines():
        if match := ENTRY.search(line):
            entry, stack = match[1], (0, 0, 0)
        elif match := PROPERTIES.search(line):
            about = match[1]  # a function that was not inlined has properties of its own, which are not the entry's
        elif (match := STACK.search(line)) and about == entry:
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif match := REGISTERS.search(line):
            found[entry] = Resources(
                registers=int(match[1]),
                spill_stores=stack[1],
                spill_loads=stack[2],
                shared_bytes=_number(SHARED, line),
                stack_bytes=stack[0],
                barriers=_number(BARRIERS, line),
            )
    return found


def _number(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return int(match[1]) if match else 0

"""What the head of a kernel in a PTX text says: its parameters and its launch bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

MAX_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


@dataclass(frozen=True)
class EntryHead:
    """parameters: as written (".param .u64 rmsnorm_param_0"); max_threads: of a block, None without launch bounds."""

    parameters: tuple[str, ...]
    max_threads: int | None


def entry_names(ptx: str) -> list[str]:
    """The kernels that a PTX text defines."""
    return re.findall(r"\.entry\s+([\w$]+)", ptx)


def entry_head(ptx: str, entry: str) -> EntryHead | None:
    """The head of one kernel; None if the text does not define it."""
    match = re.search(rf"\.entry\s+{re.escape(entry)}\s*\((?P<inside>[^)]*)\)(?P<after>[^{{]*)\{{", ptx)
    if match is None:
        return None
    parameters = tuple(line.strip() for line in match["inside"].split(",") if line.strip())
    bounds = MAX_THREADS.search(match["after"])
    return EntryHead(parameters, prod(int(size or 1) for size in bounds.groups()) if bounds else None)

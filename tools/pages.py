"""What the pages about measured kernels have in common: where figures lie and come from, tables, what a V100 needs.

For attention_page.py and gdn_page.py beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.device.build_all import Row
from labkit.device.main_loop import KINDS, OTHER
from labkit.device.nvrtc import find_nvrtc
from labkit.device.occupancy import v100_occupancy

DOCS = Path(__file__).parents[1] / "docs"
MEASURED = DOCS / "measured"
MODEL, RANKS = "Qwen3.5-27B", 2
NEEDS = ("threads", "registers", "spills", "shared", "occupancy")


def benches(subject: str) -> list[dict[str, Any]]:
    """The documents about it in docs/measured, as ``labkit bench ... --json`` wrote them."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(MEASURED.glob(f"{subject}-*.json"))]


def unmeasured(command: str) -> list[str]:
    """In place of figures."""
    return ["## Speed", "", f"Not yet measured: `{command}` does it on an NVIDIA GPU.", ""]


def origin(bench: dict[str, Any], command: str) -> list[str]:
    """Where the figures of a document come from, and with which copy they compare."""
    return [
        f"## {bench['device']}",
        "",
        f"Measured {bench['date']}: driver {bench['driver']}, torch {bench['torch']}, labkit {bench['labkit']} (kernel",
        f"sources `{bench['kernels'][:12]}`), `{command}`, everything in one run; CUDA graphs that rotate",
        "over buffers larger than twice the L2, median of ten. A copy of 1 GiB moves",
        f"{bench['copy_gb_per_s']:,.0f} GB/s, read plus written. V100: not yet measured.",
        "",
    ]


def table_head(names: Sequence[str], numbers: Sequence[str]) -> list[str]:
    """Of a table whose first columns are names, to the left."""
    return [table_row(*names, *numbers), "|---" * len(names) + "|--:" * len(numbers) + "|"]


def table_row(*cells: object) -> str:
    """One line."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def static_head(more: str = "") -> list[str]:
    """What tables of ``needs`` say; ``more`` about them."""
    return [
        "## On a V100, from the compiler",
        "",
        f"{MODEL} on one of {RANKS} GPUs, `sm_70` machine code by {find_nvrtc()}: counted, not measured. Shared memory",
        "is in bytes, with what a launch asks for; occupancy is the share of a multiprocessor's 64 warps that fit. The",
        "columns on the right count the instructions of each kind in one pass of the innermost main loop (an",
        f"`mma.m8n8k4` is four HMMA, `tensor`).{more}",
        "",
    ]


def needs_head(*names: str) -> list[str]:
    """Of a table of ``needs`` behind such names."""
    return table_head(names, [*NEEDS, *KINDS, OTHER])


def needs(row: Row, asked: int = 0, kinds: Sequence[str] = (*KINDS, OTHER)) -> list[object]:
    """What a kernel takes on a V100, by NEEDS, and its main loop's instructions by ``kinds``.

    asked: bytes of shared memory that a launch asks for on top of the kernel's own.
    """
    spills, loop, shared = row.spill_stores + row.spill_loads, row.main_loop or {}, row.shared_bytes + asked
    occupancy = v100_occupancy(row.block_threads, row.registers, shared).fraction
    taken = row.block_threads, row.registers, spills, f"{shared:,}", f"{occupancy:.0%}"
    return [*taken, *(loop.get(kind, "") for kind in kinds)]

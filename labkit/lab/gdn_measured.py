"""What ``labkit bench gdn --json`` has left in a folder, for chapter 12: a few lines of each file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ABSENT = "not yet measured"
PARTS = {"decode": "gb_per_s", "prefill": "tflop_per_s"}  # what each is judged by
UNITS = {"gb_per_s": "GB/s", "tflop_per_s": "TFLOP/s"}
MODEL = "27b-tp2"


def measured(folder: Path) -> str:
    """The decoding steps and prefills of Qwen3.5-27B on one of two GPUs in each gdn-*.json of the folder, in order."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("gdn-*.json"))]
    return "\n".join(line for document in documents for line in _lines(document)) or ABSENT


def _lines(bench: dict[str, Any]) -> list[str]:
    head = f"{bench['device']}, measured {bench['date']}, labkit {bench['labkit']}, torch {bench['torch']};"
    lines = [f"{head} a copy moves {bench['copy_gb_per_s']:,.0f} GB/s"]
    for part, figure in PARTS.items():
        rows = [row for row in bench[part] if row["model"] == MODEL]
        lines += [_line(part, row, figure) for row in rows]
    return lines


def _line(part: str, row: dict[str, Any], figure: str) -> str:
    """One case: microseconds of every kernel that was timed, with its rate."""
    rates = row[figure]
    timed = (
        f"{kernel} {us:,.1f} us ({rates[kernel]:,.{0 if part == 'decode' else 1}f} {UNITS[figure]})"
        for kernel, us in row["microseconds"].items()
    )
    share = row.get("share_of_copy")
    of_copy = f"; {share:.0%} of the copy" if share is not None else ""
    return f"  {part}, {row['sequences']} x {row['tokens']} tokens: {', '.join(timed)}{of_copy}"

"""Writes docs/attention.md: what attention reaches on a GPU, from docs/measured/, and what it takes on a V100.

labkit bench attention --all-rungs --json > docs/measured/attention-h200.json     # on the GPU
python tools/attention_page.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pages import (
    DOCS,
    MODEL,
    RANKS,
    benches,
    needs,
    needs_head,
    origin,
    static_head,
    table_head,
    table_row,
    unmeasured,
)

from labkit.bench.figures import figure, kernels_of, percent
from labkit.device.build_all import Row, Wanted, build_all
from labkit.device.ladder import Ladder, Macros
from labkit.model.config import parse_config
from labkit.model.named import NAMED_CONFIGS
from labkit.ops.attention_prefill import shared_bytes
from labkit.ops.ladders import LADDERS

PAGE = DOCS / "attention.md"
COMMAND = "labkit bench attention"
OPS = ("qk_norm_rope_kv", "attention_decode", "attention_prefill")
KV_DTYPES = ("fp16", "int8", "int4", "k8v4")
LABKIT, GATHERED, DENSE = "labkit", "gather + SDPA", "SDPA dense"
# What had been asked of decode at 64K tokens and six query heads on a KV head, as a share of a copy.
WANTED_AT, WANTED, BEATS_FROM = 65536, {"fp16": 0.70, "int8": 0.55, "int4": 0.35}, 4096


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([*_head(), *measured(benches("attention")), *static()]) + "\n"


def _head() -> list[str]:
    return [
        "# Attention",
        "",
        "No V100 has been at hand. What is measured was measured on another GPU, from the same `compute_70` PTX. There",
        "the driver emulates `mma.m8n8k4`, so kernels that use tensor cores say nothing about speed; decode, which is",
        "bound by memory, is judged as a share of a copy's bandwidth. What the compiler makes of the kernels for a",
        "V100 is at the end. Written by `python tools/attention_page.py` from [docs/measured](measured) and the",
        "sources; a test keeps it current.",
        "",
    ]


# Measured


def measured(documents: Sequence[dict[str, Any]]) -> list[str]:
    """The tables of each file that ``labkit bench attention --json`` wrote."""
    return [line for document in documents for line in _bench(document)] if documents else unmeasured(COMMAND)


def _bench(bench: dict[str, Any]) -> list[str]:
    return [*origin(bench, COMMAND), *_decode(bench["decode"]), *_prefill(bench["prefill"])]


def _decode(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    kernels = kernels_of(rows)
    lines = [
        "### Decode",
        "",
        "Microseconds of a call; GB/s are the bytes of K and V with their scales over the time of `labkit`, the rung",
        "that runs by default. `gather + SDPA` copies the pages into a dense fp16 cache (dequantized) and then calls",
        "torch's scaled_dot_product_attention; `SDPA dense` has that cache already. What takes over 0.25 s a call or",
        "does not fit into memory is left out.",
        "",
        *table_head(["heads"], ["batch", "context", "KV", "MB", *kernels, "GB/s", "of copy"]),
    ]
    for row in rows:
        times = [figure(row["microseconds"].get(kernel)) for kernel in kernels]
        rates = figure(row["gb_per_s"].get(LABKIT), 0), percent(row["share_of_copy"])
        place = row["model"], row["batch"], f"{row['context']:,}", row["kv"], f"{row['mb']:,.1f}"
        lines.append(table_row(*place, *times, *rates))
    return [*lines, "", *targets(rows), ""]


def targets(rows: list[dict[str, Any]]) -> list[str]:
    """What had been asked for, and what came of it."""
    asked = [row for row in rows if row["context"] == WANTED_AT and row["kv"] in WANTED and row["model"] == "27b-tp2"]
    short = [row for row in asked if (row["share_of_copy"] or 0) < WANTED[row["kv"]]]
    judged = [row for row in rows if row["context"] >= BEATS_FROM and row["kv"] in ("int8", "int4")]
    return [
        "At 64K tokens and six query heads on a KV head 70 % of the copy was wanted for fp16, 55 % for int8 and 35 %",
        "for int4; and from 4K tokens on int8 and int4 were to beat torch.",
        "",
        f"- Below the wanted share: {_named(short, asked)}.",
        f"- Behind `gather + SDPA`: {_behind(judged, GATHERED)}.",
        f"- Behind `SDPA dense`, which has nothing to gather: {_behind(judged, DENSE)}.",
    ]


def _behind(rows: list[dict[str, Any]], other: str) -> str:
    """Rows that are not faster than ``other``, or without a figure of labkit's, among those with one of the other's."""
    judged = [row for row in rows if other in row["microseconds"]]
    times = ((row, row["microseconds"]) for row in judged)
    return _named([row for row, each in times if each.get(LABKIT, float("inf")) >= each[other]], judged)


def _named(rows: list[dict[str, Any]], judged: list[dict[str, Any]]) -> str:
    if not judged:
        return "not measured"
    names = (f"{row['model']} {row['kv']} at {row['batch']} x {row['context']:,}" for row in rows)
    return f"{', '.join(names) or 'none'} (of {len(judged)})"


def _prefill(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    kernels = kernels_of(rows, "tflop_per_s")
    lines = [
        "### Prefill",
        "",
        "TFLOP/s of the pairs that a causal mask leaves, the last `chunk` tokens of `context`. On a GPU without a",
        "tensor core for `m8n8k4` labkit takes the library; its kernels stand here all the same.",
        "",
        *table_head(["heads"], ["chunk", "context", "KV", "GFLOP", *kernels]),
    ]
    for row in rows:
        rates = [figure(row["tflop_per_s"].get(kernel)) for kernel in kernels]
        place = row["model"], f"{row['chunk']:,}", f"{row['context']:,}", row["kv"], f"{row['gflop']:,.0f}"
        lines.append(table_row(*place, *rates))
    return [*lines, ""]


# From the compiler


def static() -> list[str]:
    """Registers, shared memory, spills, occupancy and the main loops' instructions of every rung for sm_70."""
    lines = static_head(" The older rungs are listed for fp16 pages only.")
    for op in OPS:
        ladder = LADDERS.get(op)
        lines += [f"### {op}", "", *(_ladder(ladder) if ladder else ["Not in the ladders yet."]), ""]
    return lines[:-1]


def _ladder(ladder: Ladder) -> list[str]:
    lines = needs_head("rung", "KV", "kernel")
    builds = list(_builds(ladder))
    for rung, names, macros in builds:
        for row in build_all([Wanted(ladder.op, rung, macros, ladder.entries)]):
            lines.append(table_row(f"`{row.rung}`", ", ".join(names), f"`{row.entry}`", *needs(row, _asked_bytes(row))))
    return lines if builds else ["No kernel for this model."]


def _builds(ladder: Ladder) -> Iterable[tuple[str, list[str], Macros]]:
    """(rung, KV dtypes, macros): rungs that run in every KV dtype, the others with fp16 pages."""
    config = parse_config(NAMED_CONFIGS[MODEL])
    for rung in ladder.rungs:
        named: dict[str, tuple[list[str], Macros]] = {}
        for kv in KV_DTYPES if rung in ladder.in_use else KV_DTYPES[:1]:
            for macros in ladder.specialisations(config, RANKS, kv):
                names, _ = named.setdefault(json.dumps(macros, sort_keys=True), ([], macros))
                names.append(kv)
        yield from ((rung, names, macros) for names, macros in named.values())


def _asked_bytes(row: Row) -> int:
    """Shared memory that the operation asks for when it launches the kernel."""
    return shared_bytes(row.rung, int(row.macros["HEAD_DIM"])) if row.op == "attention_prefill" else 0


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes docs/gdn.md: what Gated DeltaNet reaches on a GPU, from docs/measured/, and what it takes on a V100.

labkit bench gdn --all-rungs --json > docs/measured/gdn-h200.json     # on the GPU
python tools/gdn_page.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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
from labkit.device.build_all import Wanted, build_all
from labkit.device.image import build_image
from labkit.device.ladder import Ladder
from labkit.model.config import parse_config
from labkit.model.named import NAMED_CONFIGS
from labkit.ops.ladders import LADDERS

PAGE = DOCS / "gdn.md"
COMMAND = "labkit bench gdn"
OPS = ("gdn_conv", "gdn_decode", "gdn_prefill", "gated_rmsnorm")
LABKIT = "labkit"
PLACE = ("sequences", "tokens")


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([*_head(), *measured(benches("gdn")), *static()]) + "\n"


def _head() -> list[str]:
    return [
        "# Gated DeltaNet",
        "",
        "No V100 has been at hand. What is measured was measured on another GPU, from the same `compute_70` PTX. There",
        "the driver emulates `mma.m8n8k4`: prefill on tensor cores says nothing about speed, and a rung without them",
        "runs by default. The convolution, decode and the norm are bound by memory and judged as a share of a copy's",
        "bandwidth. What the compiler makes of the kernels for a V100 is at the end. Written by",
        "`python tools/gdn_page.py` from [docs/measured](measured) and the sources; a test keeps it current.",
        "",
    ]


# Measured


def measured(documents: Sequence[dict[str, Any]]) -> list[str]:
    """The tables of each file that ``labkit bench gdn --json`` wrote."""
    return [line for document in documents for line in _bench(document)] if documents else unmeasured(COMMAND)


def _bench(bench: dict[str, Any]) -> list[str]:
    return [
        *origin(bench, COMMAND),
        "Microseconds of a call: `labkit` is the rung that runs by default, `torch` the operation's definition in",
        "plain torch, with the same arguments and fp32 inside, in a CUDA graph too. What takes over 0.25 s a call is",
        "left out, as is torch where it does not fit into memory. MB is what a call must read and write, everything",
        "once; GB/s are those bytes over the time of `labkit`.",
        "",
        *_bytes("Convolution", bench["conv"]),
        *_bytes("Decode: gates, delta rule and norm of one row a sequence", bench["decode"]),
        *_products(bench["prefill"]),
        *_bytes("Norm", bench["norm"]),
    ]


def _bytes(title: str, rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    kernels = kernels_of(rows)
    lines = [f"### {title}", "", *table_head(["heads"], [*PLACE, "MB", *kernels, "GB/s", "of copy"])]
    for row in rows:
        rate = figure(row["gb_per_s"].get(LABKIT), 0), percent(row["share_of_copy"])
        lines.append(table_row(*_place(row), figure(row["mb"], 2), *_times(row, kernels), *rate))
    return [*lines, ""]


def _products(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    kernels = kernels_of(rows)
    lines = [
        "### Prefill",
        "",
        "The delta rule on whole prompts. GFLOP are those of the products of the chunked form, for each value head;",
        "the columns on the right are those of `labkit`.",
        "",
        *table_head(["heads"], [*PLACE, "GFLOP", *kernels, "µs for 1,024 tokens", "TFLOP/s"]),
    ]
    for row in rows:
        rates = row["microseconds_per_1024_tokens"].get(LABKIT), row["tflop_per_s"].get(LABKIT)
        lines.append(table_row(*_place(row), figure(row["gflop"]), *_times(row, kernels), *map(figure, rates)))
    return [*lines, ""]


def _place(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], f"{row['sequences']:,}", f"{row['tokens']:,}"


def _times(row: dict[str, Any], kernels: Sequence[str]) -> list[str]:
    return [figure(row["microseconds"].get(kernel)) for kernel in kernels]


# From the compiler


def static() -> list[str]:
    """Registers, shared memory, spills, occupancy and the main loops' instructions of every rung for sm_70."""
    lines = static_head()
    for op in OPS:
        ladder = LADDERS.get(op)
        lines += [f"### {op}", "", *(_ladder(ladder) if ladder else ["Not in the ladders yet."]), ""]
    return lines[:-1]


def _ladder(ladder: Ladder) -> list[str]:
    wanted = list(_wanted(ladder))
    rows = build_all(wanted)
    lines = [
        *needs_head("rung", "kernel"),
        *(table_row(f"`{row.rung}`", f"`{row.entry}`", *needs(row)) for row in rows),
    ]
    return lines if wanted else ["No kernel for this model."]


def _wanted(ladder: Ladder) -> Iterator[Wanted]:
    """Every rung for this model, with all kernels that it defines: some rungs need several launches."""
    config = parse_config(NAMED_CONFIGS[MODEL])
    for rung in ladder.rungs:
        for macros in ladder.specialisations(config, RANKS, "auto"):
            entries = tuple(build_image(ladder.op, rung, macros).resources["sm_70"])
            yield Wanted(ladder.op, rung, macros, entries)


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

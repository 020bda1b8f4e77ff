"""Writes docs/int4.md, what INT4 products reach on a GPU, from the measurements in docs/measured/.

labkit bench gemv --all-rungs --json > docs/measured/gemv-h200.json     # on the GPU
labkit tune --shapes ... --json > docs/measured/tune-h200.json
python tools/int4_page.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "int4.md"
MEASURED = ROOT / "docs" / "measured"
SHIPPED = "5_integer_dot"


def page() -> str:
    """The whole page as Markdown."""
    gemv, tune = (json.loads((MEASURED / name).read_text()) for name in ("gemv-h200.json", "tune-h200.json"))
    return "\n".join([*_head(), *_gemv(gemv), *_targets(gemv), *_negative(), *_tune(tune)]) + "\n"


def _head() -> list[str]:
    return [
        "# INT4 products, measured",
        "",
        "No V100 has been at hand: everything here was measured on another GPU, from the same `compute_70` PTX. There",
        "the driver emulates `mma.m8n8k4`, so tensor-core kernels say nothing about speed; kernels that are bound by",
        "memory are judged as a share of a copy's bandwidth. V100: not yet measured. Written by",
        "`python tools/int4_page.py` from [docs/measured](measured).",
        "",
    ]


def _gemv(bench: dict[str, Any]) -> list[str]:
    kernels = list(bench["times"][0]["gb_per_s"])
    lines = [
        "## The GEMV ladder",
        "",
        f"{bench['device']}, driver {bench['driver']}, torch {bench['torch']}, {bench['date']},",
        f"labkit {bench['labkit']} (kernel sources `{bench['kernels'][:12]}`), `labkit bench gemv --all-rungs`.",
        f"A copy of 1 GiB moves {bench['copy_gb_per_s']:,.0f} GB/s, read plus written. GB/s are the bytes of the INT4",
        "weight and its scales (group 128) over the time, in CUDA graphs that rotate over weights larger than twice",
        "the L2; cuBLAS multiplies with fp16 weights, four times the bytes.",
        "",
        f"| outputs x inputs | MB | rows | {' | '.join(kernels)} | last rung of copy |",
        f"|---|--:|--:|{'--:|' * len(kernels)}--:|",
    ]
    for row in bench["times"]:
        rates = " | ".join(f"{row['gb_per_s'][kernel]:,.0f}" for kernel in kernels)
        lines.append(
            f"| {row['shape'].split()[0]} | {row['mb']:.0f} | {row['rows']} | {rates} | {row['share_of_copy']:.0%} |"
        )
    return [*lines, ""]


def _targets(bench: dict[str, Any]) -> list[str]:
    """What had been asked for, and what came of it."""
    lines = [
        "At one row 75 % of the copy was wanted at 89 MB of weights, 65 % above 40 MB, 50 % above 20 MB; at four rows"
    ]
    lines += ["40 % above 40 MB; and torch's INT4 kernel was to be beaten everywhere.", ""]
    missed = [row for row in bench["times"] if row["share_of_copy"] < _wanted(row)]
    behind = [row for row in bench["times"] if row["gb_per_s"][SHIPPED] < row["gb_per_s"]["torch int4"]]
    lines += [f"- Below the wanted share: {_named(missed)}.", f"- Behind torch's kernel: {_named(behind)}."]
    return [
        *lines,
        "- At four rows the last rung is bound by arithmetic: 4.6 instructions a weight and lane, 2.0 of them `dp4a`;",
        "  for 128 inputs among which a row has outliers, which take three bytes of x, 5.8 and 3.0 (`sm_70` code,",
        "  groups of 128). The x of this table is normal: two bytes.",
        "  A V100 takes the tensor-core rung there (`labkit doctor` says which rule holds).",
        "",
    ]


def _wanted(row: dict[str, Any]) -> float:
    nibbles = int(row["shape"].split("x")[0]) * int(row["shape"].split("x")[1].split()[0]) / 2e6  # MB without scales
    if row["rows"] == 4:
        return 0.40 if nibbles > 40 else 0.0
    return next((share for least, share in ((89, 0.75), (40, 0.65), (20, 0.50)) if nibbles > least), 0.0)


def _named(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{row['shape'].split()[0]} at {row['rows']}" for row in rows) or "none"


def _negative() -> list[str]:
    return [
        "## Tried on the way, and left",
        "",
        "On the same GPU and day, as sketches that were not kept:",
        "",
        "- Halves converted to floats: at 95 MB and one row 2,590 GB/s.",
        "- Nibbles put into the bits of 16.0 and 256.0, no conversion, fp32 products: 3,014 GB/s there, and",
        "  1,628 at four rows.",
        "- The same with every block given an equal stretch of all weights (stream-K): 6 % slower at that size, up",
        "  to 12 % elsewhere; its bookkeeping costs more than the uneven last round.",
        "- Loads of the next batch in registers of their own (the loop unrolled twice): equal at one row, 16 % slower",
        "  at four.",
        "- Rolled inner loops, to spare the instruction cache: slower; stalls for instructions were below 3 %.",
        "",
        "Later, on an H200 with a copy at 4,233 GB/s, variants of the last rung at four rows of normal x:",
        "",
        "- Three bytes of every x, four warps a block: at best 1,698 GB/s at 34816x5120, against 1,936 with two.",
        "- Four stretches of 32 outputs for a warp in place of two: 2,138 GB/s there, but 1,071 at 8192x5120, where",
        "  the kernel as it is reached 1,740.",
        "- Shares of K that begin with columns: 1,761 at 34816x5120, against 1,948 with one equal share for each",
        "  multiprocessor; at 8192x5120 it is 1,740 against 1,342. So the op takes whichever suits the shape",
        "  (`blocks_of_last_rung`).",
        "",
    ]


def _tune(table: dict[str, Any]) -> list[str]:
    lines = [
        "## Which kernel for how many rows",
        "",
        f"{table['device']}, `labkit tune`, microseconds of a call; what took over three times the best is left out.",
        "On a V100 the table will look different from 4 rows on.",
        "",
        "| weight | rows | microseconds |",
        "|---|--:|---|",
    ]
    for row in table["measured"]:
        times = ", ".join(f"{name} {1e6 * seconds:.1f}" for name, seconds in row["seconds"].items())
        lines.append(f"| {_shape(row)} | {row['rows']} | {times} |")
    return lines


def _shape(shape: dict[str, Any]) -> str:
    group = f" g{shape['group']}" if shape["group"] else ""
    return f"{shape['outputs']}x{shape['inputs']} {shape['kind']}{group}"


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

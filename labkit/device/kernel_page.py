"""The page docs/kernels.md: what every shipped kernel takes on a V100, as the assembler reports it."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.device.build_all import Row

HEAD = """# Kernels

What each rung takes on a V100 (`sm_70`), as `ptxas -v` of {compiler} reports it. Occupancy: warps that one
multiprocessor keeps at a time, of 64, by the limits in `labkit/device/occupancy.py`; kernels without
launch bounds count as blocks of 256 threads; dynamic shared memory is not in it.

Written by `make kernel-page`; a test keeps it current.

| kernel | macros | threads | registers | spills | shared bytes | occupancy |
|---|---|--:|--:|--:|--:|--:|
"""


def kernel_page(rows: Sequence[Row], compiler: str) -> str:
    """The page for these rows, which ``build_all`` made for sm_70."""
    return HEAD.format(compiler=compiler) + "".join(f"{_line(row)}\n" for row in rows)


def _line(row: Row) -> str:
    macros = " ".join(f"{name}={value}" for name, value in row.macros.items())
    occupancy = "-" if row.occupancy is None else f"{row.occupancy:.1%}"
    cells = (
        f"`{row.op}/{row.rung}` `{row.entry}`",
        f"`{macros}`" if macros else "",
        row.block_threads,
        row.registers,
        row.spill_stores + row.spill_loads,
        row.shared_bytes,
        occupancy,
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"

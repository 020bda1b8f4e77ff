"""The command that measures the INT4 GEMV: bench gemv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.cli import options as o
from labkit.cli.progress import progress_bar
from labkit.errors import ConfigError

if TYPE_CHECKING:
    from labkit.bench.gemv import GemvBench
    from labkit.ops.tuning_table import WeightShape


def bench_gemv(
    shapes: Annotated[
        list[str] | None, typer.Option(help="Outputs x inputs, such as 17408x5120; by default those of 27B.")
    ] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Rows of x, 1 to 8, repeatable; by default 1 and 4.")] = None,
    all_rungs: Annotated[bool, typer.Option("--all-rungs", help="Every rung of the ladder.")] = False,
    as_json: o.Json = False,
) -> None:
    """Time the INT4 GEMV on this GPU beside torch's INT4 kernel and cuBLAS, as a share of a copy's bandwidth.

    Example: `labkit bench gemv --shapes 17408x5120 --rows 1 --all-rungs`
    """
    from labkit.bench.gemv import ROWS, SHAPES
    from labkit.bench.gemv import bench_gemv as measure
    from labkit.ops.awq_gemv import MOST_ROWS, RUNGS

    if any(not 1 <= count <= MOST_ROWS for count in rows or ()):
        raise ConfigError(f"--rows {rows}: the GEMV takes 1 to {MOST_ROWS} rows.", cure="Name numbers in that range.")
    wanted = [_shape(text) for text in shapes or ()] or SHAPES
    with progress_bar() as progress:
        result = measure(wanted, rows or ROWS, RUNGS if all_rungs else RUNGS[-1:], progress)
    if as_json:
        o.print_json(result.to_dict())
    else:
        _print(result)


def _shape(text: str) -> WeightShape:
    """A weight in groups of 128, which may be said ("17408x5120:g128", as labkit tune has it)."""
    from labkit.bench.gemv import GROUP
    from labkit.bench.matrices import parse_shape

    try:
        return parse_shape(f"{text.removesuffix(f':g{GROUP}')}:g{GROUP}")
    except ConfigError:
        cure = f"Write outputs x inputs, such as 17408x5120; inputs is a multiple of {GROUP}."
        raise ConfigError(f"--shapes {text}: no INT4 weight in groups of {GROUP}.", cure=cure) from None


def _print(result: GemvBench) -> None:
    from labkit.bench.tune_weights import weight_bytes
    from labkit.ops.awq_gemv import RUNGS

    console = Console()
    console.print(f"{result.device}, driver {result.driver}, torch {result.torch}; measured in one run")
    console.print(f"A copy moves {result.copy_gb_per_s:,.0f} GB/s, bytes read plus written.")
    table = Table(box=SIMPLE_HEAD)
    kernels = list(result.times[0].seconds)
    for heading in ("outputs x inputs", "MB", "rows", *kernels, "of copy"):
        table.add_column(heading, justify="right")
    for times in result.times:
        share = times.gb_per_s(RUNGS[-1]) / result.copy_gb_per_s
        table.add_row(
            f"{times.shape.outputs} x {times.shape.inputs}",
            f"{weight_bytes(times.shape) / 1e6:.0f}",
            str(times.rows),
            *(f"{times.gb_per_s(kernel):,.0f}" for kernel in kernels),
            f"{share:.0%}",
        )
    console.print(table)
    console.print("GB/s of the INT4 weight's bytes, scales included. cuBLAS reads four times as many.")

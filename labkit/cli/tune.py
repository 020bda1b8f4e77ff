"""The command that measures which kernel a linear layer should run on: tune."""

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
    from labkit.ops.tuning_table import Measured, TuningTable, WeightShape

DEFAULT_MODEL, DEFAULT_WEIGHTS = "Qwen3.5-27B", "g128-awq"


def tune(
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", help="Measure this model's linear layers; by default Qwen3.5-27B in INT4."),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Weight format of a named config, such as g128-sym.")] = None,
    tp_size: Annotated[
        int | None, typer.Option(help="Tensor-parallel ranks that share the model; 1 by default.", min=1)
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(help="Measure these instead, such as 17408x5120:g128; repeatable."),
    ] = None,
    rows: Annotated[
        list[int] | None, typer.Option(help="Rows of the calls, repeatable; by default 17 numbers from 1 to 4096.")
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Time the kernels that a linear layer may run on, on this GPU, and keep the table that the engine then follows.

    Example: `labkit tune -m Qwen3.5-27B --weights g128-awq --tp-size 2`
    """
    from labkit.bench.tune import ROWS
    from labkit.bench.tune import tune as measure
    from labkit.ops.tuning_table import table_path

    wanted = _shapes(model, weights, tp_size, shapes or [])
    with progress_bar() as progress:
        table = measure(wanted, sorted(set(rows or ROWS)), progress)
    path = table_path(table.device)
    if as_json:
        o.print_json({**table.to_dict(), "origin": "measured", "path": str(path)})
    else:
        _print(table)
        print(f"kept in {path}")


def _shapes(model: str | None, weights: str | None, tp_size: int | None, texts: list[str]) -> list[WeightShape]:
    from labkit.bench.matrices import model_shapes, parse_shape

    if texts:
        if model is not None or weights is not None or tp_size is not None:
            cure = "Leave --model, --weights and --tp-size out."
            raise ConfigError("--shapes names all that is measured.", cure=cure)
        return list(dict.fromkeys(parse_shape(text) for text in texts))
    if model is None:
        model, weights = DEFAULT_MODEL, weights or DEFAULT_WEIGHTS
    return model_shapes(model, weights, tp_size or 1)


def _print(table: TuningTable) -> None:
    """A table for each shape: a line for each number of rows, the fastest candidate marked."""
    console = Console()
    origin = f"driver {table.driver}, CUDA {table.toolkit}, torch {table.torch}, labkit {table.labkit}, {table.date}"
    console.print(f"measured: {table.device}, {origin}\nmicroseconds a call; * the fastest, - not timed to the end")
    for shape in dict.fromkeys(row.shape for row in table.measured):
        console.print(_for_shape(str(shape), [row for row in table.measured if row.shape == shape]))


def _for_shape(title: str, measured: list[Measured]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    names = list(dict.fromkeys(name for row in measured for name in row.seconds))
    for heading in ("rows", *names):
        table.add_column(heading, justify="right", overflow="fold")
    for row in measured:
        table.add_row(str(row.rows), *(_figure(row, name) for name in names))
    return table


def _figure(row: Measured, name: str) -> str:
    if name not in row.seconds:
        return "-"
    return f"{1e6 * row.seconds[name]:,.1f}{'*' if name == row.best else ' '}"

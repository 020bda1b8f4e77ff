"""The command that measures Gated DeltaNet: bench gdn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from labkit.cli import options as o
from labkit.cli.bench_tables import print_origin, table_of
from labkit.cli.progress import progress_bar
from labkit.errors import ConfigError

if TYPE_CHECKING:
    from labkit.bench.gdn_times import GdnBench


def bench_gdn(
    part: Annotated[str, typer.Option(help="What to measure: all, conv, decode, prefill or norm.")] = "all",
    geometry: Annotated[
        list[str] | None,
        typer.Option(help="Whose heads: 27b-tp2, 27b, labkit-tiny; repeatable, by default all."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Sequences that decode, repeatable; by default 1, 8 and 64. Not for prefill."),
    ] = None,
    tokens: Annotated[
        list[int] | None,
        typer.Option(
            help="Of one sequence, repeatable; by default 1024 and 4096 for prefill, which then also takes 8 sequences "
            "of 512, and 4096 for conv and norm. Not for decode."
        ),
    ] = None,
    all_rungs: Annotated[bool, typer.Option("--all-rungs", help="Every rung of the ladders.")] = False,
    as_json: o.Json = False,
) -> None:
    """Time Gated DeltaNet on this GPU beside plain torch: prefill in TFLOP/s, the rest by a copy's bandwidth.

    Example: `labkit bench gdn --part decode --geometry 27b-tp2 --batch 8 --all-rungs`
    """
    from labkit.bench.gdn import bench_gdn as measure
    from labkit.bench.gdn_cases import GEOMETRIES, PARTS, gdn_cases

    if part not in ("all", *PARTS):
        raise ConfigError(f"--part {part}: no such part.", cure=f"Choose one of all, {', '.join(PARTS)}.")
    _unused(part, batch, tokens)
    cases = gdn_cases(PARTS if part == "all" else [part], geometry or GEOMETRIES, batch, tokens)
    with progress_bar() as progress:
        result = measure(cases, all_rungs, progress)
    if as_json:
        o.print_json(result.to_dict())
    else:
        _print(result)


def _unused(part: str, batch: list[int] | None, tokens: list[int] | None) -> None:
    """An option of the part that is not measured would be ignored."""
    cure = "Leave it out, or measure --part all."
    if part == "decode" and tokens:
        raise ConfigError("--tokens belongs to conv, prefill and norm: decode has one row a sequence.", cure=cure)
    if part == "prefill" and batch:
        raise ConfigError("--batch belongs to conv, decode and norm.", cure=cure)


def _print(result: GdnBench) -> None:
    from labkit.bench.gdn_cases import PARTS

    document, console = result.to_dict(), Console()
    print_origin(console, result.device, result.driver, result.torch, result.copy_gb_per_s)
    for part in PARTS:
        if document[part]:
            console.print(_products(document[part]) if part == "prefill" else _bytes(part, document[part]))
    console.print("microseconds of a call; torch: the definition, in fp32. MB and GB/s: what a call must move,")
    console.print("everything once, by labkit. TFLOP/s: of the chunked form's products, by labkit.")


def _bytes(part: str, rows: list[dict[str, Any]]) -> Table:
    from labkit.bench.clock import LABKIT
    from labkit.bench.figures import figure, kernels_of, percent

    kernels = kernels_of(rows)
    table = table_of(part, (*PLACE, "MB", *kernels, "GB/s", "of copy"))
    for row in rows:
        rate = figure(row["gb_per_s"].get(LABKIT), 0), percent(row["share_of_copy"])
        table.add_row(*_place(row), figure(row["mb"], 2), *_times(row, kernels), *rate)
    return table


def _products(rows: list[dict[str, Any]]) -> Table:
    from labkit.bench.clock import LABKIT
    from labkit.bench.figures import figure, kernels_of

    kernels = kernels_of(rows)
    table = table_of("prefill", (*PLACE, "GFLOP", *kernels, "us / 1,024", "TFLOP/s"))
    for row in rows:
        each = row["microseconds_per_1024_tokens"].get(LABKIT), row["tflop_per_s"].get(LABKIT)
        table.add_row(*_place(row), figure(row["gflop"]), *_times(row, kernels), *map(figure, each))
    return table


PLACE = ("heads", "sequences", "tokens")


def _place(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], f"{row['sequences']:,}", f"{row['tokens']:,}"


def _times(row: dict[str, Any], kernels: list[str]) -> list[str]:
    from labkit.bench.figures import figure

    return [figure(row["microseconds"].get(kernel)) for kernel in kernels]

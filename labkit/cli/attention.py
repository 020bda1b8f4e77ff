"""The command that measures attention: bench attention."""

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
    from labkit.bench.attention_times import AttentionBench

PARTS = ("all", "decode", "prefill")


def bench_attention(
    part: Annotated[str, typer.Option(help="What to measure: all, decode or prefill.")] = "all",
    geometry: Annotated[
        list[str] | None, typer.Option(help="Whose heads: 27b-tp2, smollm2; repeatable, by default both.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Sequences that decode; by default 1 and 8.")] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(help="Tokens, repeatable; by default 1K to 128K for decode, 4K and 32K for prefill."),
    ] = None,
    chunks: Annotated[list[int] | None, typer.Option(help="Tokens of a prefill; by default 2048 and 4096.")] = None,
    kv_cache_dtype: Annotated[
        list[str] | None, typer.Option(help="Of the pages: fp16, int8, int4, k8v4; repeatable, by default all.")
    ] = None,
    all_rungs: Annotated[bool, typer.Option("--all-rungs", help="Every rung of the ladders.")] = False,
    as_json: o.Json = False,
) -> None:
    """Time paged attention on this GPU beside torch's, decode as a share of a copy's bandwidth, prefill in TFLOP/s.

    Example: `labkit bench attention --part decode --geometry 27b-tp2 --context 65536 --kv-cache-dtype int8`
    """
    from labkit.bench.attention import bench_attention as measure
    from labkit.bench.attention_cases import BATCHES, CHUNKS, GEOMETRIES, KV_DTYPES, decode_cases, prefill_cases

    if part not in PARTS:
        raise ConfigError(f"--part {part}: no such part.", cure=f"Choose one of {', '.join(PARTS)}.")
    _unused(part, batch, chunks)
    for kv in kv_cache_dtype or ():
        if kv not in KV_DTYPES:
            raise ConfigError(f"--kv-cache-dtype {kv}: no such pages.", cure=f"Choose among {', '.join(KV_DTYPES)}.")
    names = geometry or list(GEOMETRIES)
    decode = decode_cases(names, batch or BATCHES, context) if part != "prefill" else []
    prefill = prefill_cases(names, chunks or CHUNKS, context) if part != "decode" else []
    with progress_bar() as progress:
        result = measure(decode, prefill, kv_cache_dtype or KV_DTYPES, all_rungs, progress)
    if as_json:
        o.print_json(result.to_dict())
    else:
        _print(result)


def _unused(part: str, batch: list[int] | None, chunks: list[int] | None) -> None:
    """An option of the part that is not measured would be ignored."""
    if part == "decode" and chunks:
        raise ConfigError("--chunks belongs to prefill.", cure="Leave it out, or measure --part all.")
    if part == "prefill" and batch:
        raise ConfigError("--batch belongs to decode.", cure="Leave it out, or measure --part all.")


def _print(result: AttentionBench) -> None:
    document, console = result.to_dict(), Console()
    print_origin(console, result.device, result.driver, result.torch, result.copy_gb_per_s)
    if document["decode"]:
        console.print(_decode_table(document["decode"]))
        console.print("microseconds of a call, and GB/s of the bytes of K and V, scales included, that labkit reads")
    if document["prefill"]:
        console.print(_prefill_table(document["prefill"]))
        console.print("TFLOP/s, of the pairs that a causal mask leaves")


def _decode_table(rows: list[dict[str, Any]]) -> Table:
    from labkit.bench.clock import LABKIT
    from labkit.bench.figures import figure, kernels_of, percent

    kernels = kernels_of(rows)
    table = table_of("decode", ("heads", "batch", "context", "KV", "MB", *kernels, "GB/s", "of copy"))
    for row in rows:
        times = (figure(row["microseconds"].get(kernel)) for kernel in kernels)
        rate = figure(row["gb_per_s"].get(LABKIT), 0), percent(row["share_of_copy"])
        table.add_row(*_place(row, "batch"), f"{row['mb']:,.1f}", *times, *rate)
    return table


def _prefill_table(rows: list[dict[str, Any]]) -> Table:
    from labkit.bench.figures import figure, kernels_of

    kernels = kernels_of(rows, "tflop_per_s")
    table = table_of("prefill", ("heads", "chunk", "context", "KV", "GFLOP", *kernels))
    for row in rows:
        rates = (figure(row["tflop_per_s"].get(kernel)) for kernel in kernels)
        table.add_row(*_place(row, "chunk"), f"{row['gflop']:,.0f}", *rates)
    return table


def _place(row: dict[str, Any], count: str) -> tuple[str, str, str, str]:
    return row["model"], f"{row[count]:,}", f"{row['context']:,}", row["kv"]

"""The command that measures what sparse prefill keeps and finds: bench sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.cli import options as o
from labkit.cli.progress import progress_bar
from labkit.errors import ConfigError

if TYPE_CHECKING:
    from labkit.bench.sparse import SparseRow
    from labkit.bench.sparse_text import SparseText


def bench_sparse(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Measure its attention to a speech of 1862, not made-up keys.")
    ] = None,
    contexts: Annotated[
        list[int] | None,
        typer.Option("--context", help="Tokens, repeatable; by default 8K, 16K, 32K and 64K, of the speech 8,000."),
    ] = None,
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seed", help="Of the made-up keys, repeatable; by default 0 to 2.", min=0, max=2**32 - 1),
    ] = None,
    tiles: Annotated[
        int | None,
        typer.Option(help="Tiles of 64 queries, spread over the context: 16; in each layer of a model 8.", min=1),
    ] = None,
    sparse_mass: o.SparseMass = None,
    sparse_sink: o.SparseSink = None,
    sparse_recent: o.SparseRecent = None,
    timed: Annotated[bool, typer.Option("--time", help="Also the seconds in torch on this machine.")] = False,
    as_json: o.Json = False,
) -> None:
    """What sparse prefill keeps, finds and gets wrong beside dense attention: on made-up keys with needles, or a text.

    Example: `labkit bench sparse --context 65536 --seed 0 --sparse-mass 0.9`, or `labkit bench sparse -m smollm2`
    """
    from labkit.bench.results import measured_here
    from labkit.bench.sparse import CONTEXTS, SEEDS
    from labkit.bench.sparse import TILES as MADE_UP_TILES
    from labkit.bench.sparse import bench_sparse as measure
    from labkit.bench.sparse_text import CONTEXT, TILES, bench_sparse_text
    from labkit.bench.texts import DEFAULT_TEXT
    from labkit.ops.sparse_settings import SparseSettings

    if model is not None and seeds:
        raise ConfigError("--seed draws made-up keys, which --model does without.", cure="Leave one of them out.")
    given = {"mass": sparse_mass, "sink": sparse_sink, "recent": sparse_recent}
    settings = SparseSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    document: dict[str, Any] = {"settings": {name: getattr(settings, name) for name in SETTINGS}}
    with progress_bar() as progress:
        if model is None:
            rows: Sequence[Any] = measure(
                settings, contexts or CONTEXTS, seeds or SEEDS, tiles or MADE_UP_TILES, timed, progress
            )
        else:
            document |= {"model": model, "text": DEFAULT_TEXT.name}
            rows = bench_sparse_text(model, settings, contexts or (CONTEXT,), tiles or TILES, timed, progress)
    if as_json:
        o.print_json({**document, "rows": [row.to_dict() for row in rows], **vars(measured_here())})
    elif model is None:
        _print(rows, timed)
    else:
        _print_text(rows)


SETTINGS = ("mass", "sink", "recent", "needle")  # the threshold is set aside
COLUMNS = ("tokens", "seed", "kept", "needles", "found", "of rows", "of keys", "error", "worst", "cost")
TEXT_COLUMNS = ("tokens", "kept", "needles", "found", "pages", "found", "error", "worst", "dense", "sparse")
PARTS = ("choice", "kept", "dense")  # of the seconds


def _print(rows: Sequence[SparseRow], timed: bool) -> None:
    table = _table((*COLUMNS, *(PARTS if timed else ())))
    for row in rows:
        table.add_row(
            f"{row.context:,}",
            str(row.seed),
            f"{row.kept_share:.1%}",
            str(row.needles),
            *(_share(share) for share in (row.recall, row.recall_row, row.recall_key)),
            f"{row.error_mean:.3f}",
            f"{row.error_worst:.2f}",
            f"{row.cost:.1%}",
            *_seconds(row.seconds),
        )
    console = Console()
    console.print(table)
    console.print(
        "Synthetic keys; shares, needles and errors are measured. error: relative to dense attention, by row."
    )
    console.print("cost: operations of the choice and of attention, counted, as a share of dense attention's.")


def _print_text(rows: Sequence[SparseText]) -> None:
    table = _table(TEXT_COLUMNS)
    for row in rows:
        table.add_row(
            f"{row.context:,}",
            f"{row.kept_share:.1%}",
            str(row.needles),
            _share(row.recall),
            str(row.needle_pages),
            _share(row.recall_pages),
            f"{row.error_mean:.3f}",
            f"{row.error_worst:.2f}",
            f"{row.dense_perplexity:.3f}",
            f"{row.sparse_perplexity:.3f}",
        )
    console = Console()
    console.print(table)
    for row in rows:
        if row.seconds:
            parts = (f"{part} {seconds}" for part, seconds in zip(PARTS, _seconds(row.seconds), strict=True))
            console.print(f"{row.context:,} tokens, time in torch: {', '.join(parts)}")
    console.print(
        "needles: rows that pay 0.3 to a page that is not kept in any case; pages: rows of a tile count once."
    )
    console.print("error: relative to dense attention, by row and layer. dense, sparse: perplexity of the text.")


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _seconds(seconds: dict[str, float] | None) -> list[str]:
    return [f"{seconds[part]:.2f} s" for part in PARTS] if seconds else []

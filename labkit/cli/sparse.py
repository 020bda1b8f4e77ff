"""The command that measures what sparse prefill keeps and finds: bench sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.cli import options as o
from labkit.cli.progress import progress_bar

if TYPE_CHECKING:
    from labkit.bench.sparse import SparseRow


def bench_sparse(
    contexts: Annotated[
        list[int] | None, typer.Option("--context", help="Tokens, repeatable; by default 8K, 16K, 32K and 64K.")
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Of the data, repeatable; by default 0 to 2.")
    ] = None,
    tiles: Annotated[int, typer.Option(help="Tiles of 64 queries, spread over the context.", min=1)] = 16,
    sparse_mass: o.SparseMass = None,
    sparse_sink: o.SparseSink = None,
    sparse_recent: o.SparseRecent = None,
    timed: Annotated[bool, typer.Option("--time", help="Also the seconds in torch on this machine.")] = False,
    as_json: o.Json = False,
) -> None:
    """What sparse prefill keeps, finds and gets wrong on synthetic keys with needles, beside dense attention.

    Example: `labkit bench sparse --context 65536 --seed 0 --sparse-mass 0.9`
    """
    from labkit.bench.results import measured_here
    from labkit.bench.sparse import CONTEXTS, SEEDS
    from labkit.bench.sparse import bench_sparse as measure
    from labkit.ops.sparse_settings import SparseSettings

    given = {"mass": sparse_mass, "sink": sparse_sink, "recent": sparse_recent}
    settings = SparseSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    with progress_bar() as progress:
        rows = measure(settings, contexts or CONTEXTS, seeds or SEEDS, tiles, timed, progress)
    if as_json:
        document: dict[str, Any] = {"settings": vars(settings), "rows": [row.to_dict() for row in rows]}
        o.print_json({**document, **vars(measured_here())})
    else:
        _print(rows, timed)


COLUMNS = ("tokens", "seed", "kept", "needles", "found", "of rows", "of keys", "error", "worst", "cost")
PARTS = ("choice", "kept", "dense")  # of the seconds


def _print(rows: list[SparseRow], timed: bool) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    for heading in (*COLUMNS, *(PARTS if timed else ())):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        shares = (row.recall, row.recall_row, row.recall_key)
        table.add_row(
            f"{row.context:,}",
            str(row.seed),
            f"{row.kept_share:.1%}",
            str(row.needles),
            *(f"{share:.1%}" for share in shares),
            f"{row.error_mean:.3f}",
            f"{row.error_worst:.2f}",
            f"{row.cost:.1%}",
            *(f"{(row.seconds or {})[part]:.2f} s" for part in (PARTS if timed else ())),
        )
    console = Console()
    console.print(table)
    console.print(
        "Synthetic keys; shares, needles and errors are measured. error: relative to dense attention, by row."
    )
    console.print("cost: operations of the choice and of attention, counted, as a share of dense attention's.")

"""The command that compiles kernels: build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli import options as o
from labkit.cli.progress import progress_bar
from labkit.errors import ConfigError

if TYPE_CHECKING:
    from labkit.device.build_all import Row, Wanted


def build(
    arch: Annotated[str, typer.Option(help="sm_70, compute_70 (PTX only) or a newer GPU, such as sm_90.")] = "sm_70",
    out: Annotated[Path | None, typer.Option(help="Write PTX and cubins here, for LABKIT_KERNEL_DIR.")] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Build only what a run of this model needs.")
    ] = None,
    tp_size: Annotated[int, typer.Option(help="Tensor-parallel ranks of that run.", min=1)] = 1,
    kv_cache_dtype: Annotated[str, typer.Option(help="Of that run: auto, fp16, int8, int4 or k8v4.")] = "auto",
    as_json: o.Json = False,
) -> None:
    """Compile the CUDA kernels and say what each takes: registers, spills, shared memory, occupancy on a V100.

    Example: `labkit build --model Qwen3.5-27B --tp-size 2 --arch sm_90 --out kernels`
    """
    from labkit.device.build_all import build_all

    with progress_bar() as progress:
        rows = build_all(_wanted(model, tp_size, kv_cache_dtype), arch, out, progress)
    if as_json:
        o.print_json({"kernels": [row.to_dict() for row in rows]})
    else:
        _print(rows, out)


def _wanted(model: str | None, tp_size: int, kv_cache_dtype: str) -> list[Wanted]:
    from labkit.bench.fit_report import KV_CACHE_DTYPES
    from labkit.device.build_all import all_rungs, for_model
    from labkit.ops.ladders import LADDERS

    if kv_cache_dtype not in ("auto", *KV_CACHE_DTYPES):
        cure = f"Choose one of: auto, {', '.join(KV_CACHE_DTYPES)}."
        raise ConfigError(f"kv_cache_dtype is {kv_cache_dtype!r}.", cure=cure)
    if model is None:
        return all_rungs(LADDERS.values())
    return for_model(LADDERS.values(), _config(model), tp_size, kv_cache_dtype)


def _config(model: str) -> Any:
    """A model's configuration, from its name alone where that is enough."""
    from labkit.model.checkpoint import open_checkpoint
    from labkit.model.config import parse_config
    from labkit.model.named import NAMED_CONFIGS
    from labkit.model.resolve import resolve_model

    name = model.removeprefix("random:")
    if name in NAMED_CONFIGS:
        return parse_config(NAMED_CONFIGS[name])
    if name != model:
        raise ConfigError(f"There is no model {model!r}.", cure=f"Known by name: {', '.join(NAMED_CONFIGS)}.")
    return parse_config(open_checkpoint(resolve_model(model)).config)


def _print(rows: list[Row], out: Path | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"kernels for {rows[0].arch}" if rows else "no kernels", box=SIMPLE_HEAD, show_edge=False)
    table.add_column("kernel", overflow="fold")
    for heading in ("registers", "spill st/ld", "shared", "occupancy"):
        table.add_column(heading, justify="right")
    for row in rows:
        occupancy = "-" if row.occupancy is None else f"{row.occupancy:.0%}"
        spills = f"{row.spill_stores}/{row.spill_loads}"
        table.add_row(Text(row.name), str(row.registers), spills, f"{row.shared_bytes:,} B", occupancy)
    console = Console()
    console.print(table)
    console.print(f"{len(rows)} kernels" + (f", written to {out}: set LABKIT_KERNEL_DIR to it" if out else ""))

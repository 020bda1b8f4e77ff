"""The command that compiles kernels: build."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli import options as o
from labkit.cli.progress import progress_bar
from labkit.errors import ConfigError

if TYPE_CHECKING:
    from labkit.device.build_all import Row, Wanted

COLUMNS = 80  # of a terminal; names are never cut, macros go to a second line


def build(
    arch: Annotated[str, typer.Option(help="sm_70, compute_70 (PTX only) or a newer GPU, such as sm_90.")] = "sm_70",
    out: Annotated[str | None, typer.Option(help="Write PTX and cubins here, for LABKIT_KERNEL_DIR.")] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Build only what a run of this model needs.")
    ] = None,
    tp_size: Annotated[int | None, typer.Option(help="Tensor-parallel ranks of that run: 1.", min=1)] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="Of that run: auto, fp16, int8, int4 or k8v4.")] = None,
    mix: Annotated[bool, typer.Option("--mix", help="Also count the instructions of main loops on a V100.")] = False,
    as_json: o.Json = False,
) -> None:
    """Compile the CUDA kernels and say what each takes: registers, spills, shared memory, occupancy on a V100.

    Example: `labkit build --model Qwen3.5-27B --tp-size 2 --arch sm_90 --out kernels`
    """
    from labkit.device.build_all import build_all

    if mix and arch != "sm_70":
        raise ConfigError(f"--mix counts machine code for sm_70, not {arch}.", cure="Leave out --mix or --arch.")
    folder = _folder(out)
    with progress_bar() as progress:
        rows = build_all(_wanted(model, tp_size, kv_cache_dtype), arch, folder, progress)
    if as_json:
        o.print_json({"kernels": [row.to_dict() for row in rows]})
    else:
        _print(rows, folder, mix)


def _folder(out: str | None) -> Path | None:
    if out == "":
        raise ConfigError("--out is empty.", cure="Name a folder.")
    return Path(os.path.expanduser(out)) if out else None


def _wanted(model: str | None, tp_size: int | None, kv_cache_dtype: str | None) -> list[Wanted]:
    from labkit.bench.fit_bytes import size_problems
    from labkit.bench.fit_report import KV_CACHE_DTYPES
    from labkit.device.build_all import all_rungs, for_model
    from labkit.ops.ladders import LADDERS

    if kv_cache_dtype not in (None, "auto", *KV_CACHE_DTYPES):
        cure = f"Choose one of: auto, {', '.join(KV_CACHE_DTYPES)}."
        raise ConfigError(f"kv_cache_dtype is {kv_cache_dtype!r}.", cure=cure)
    if model is None:
        if tp_size is not None or kv_cache_dtype is not None:
            raise ConfigError("--tp-size and --kv-cache-dtype belong to a model.", cure="Name one with --model.")
        return all_rungs(LADDERS.values())
    config, ranks = _config(model), tp_size or 1
    if problems := list(size_problems(config, ranks)):
        raise ConfigError(" ".join(problems), cure="Choose another --tp-size.")
    return for_model(LADDERS.values(), config, ranks, kv_cache_dtype or "auto")


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


def _print(rows: list[Row], out: Path | None, mix: bool) -> None:
    """A heading for each operation with one set of macros, and below it the kernels that are compiled with them."""
    width = max((len(_label(row)) for row in rows), default=0)
    if rows:
        print(f"  {f'kernels for {rows[0].arch}':{width}}  registers  spill st/ld    shared  occupancy")
    for heading, kernels in _by_macros(rows).items():
        print("", *wrap(heading, COLUMNS, subsequent_indent="    "), sep="\n")
        for row in kernels:
            print(f"  {_label(row):{width}}  {_figures(row)}")
            if mix:
                print(*_mix(row), sep="\n")
    print(f"\n{len(rows)} kernels" + (f", written to {out}: set LABKIT_KERNEL_DIR to it" if out else ""))


def _by_macros(rows: list[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        macros = " ".join(f"{name}={value}" for name, value in row.macros.items())
        groups.setdefault(f"{row.op}  {macros}".rstrip(), []).append(row)
    return groups


def _label(row: Row) -> str:
    return f"{row.rung}:{row.entry}"


def _figures(row: Row) -> str:
    occupancy = "-" if row.occupancy is None else f"{row.occupancy:.0%}"
    spills = f"{row.spill_stores}/{row.spill_loads}"
    return f"{row.registers:9}  {spills:>11}  {f'{row.shared_bytes:,} B':>8}  {occupancy:>9}"


def _mix(row: Row) -> list[str]:
    counts = "  ".join(f"{kind}\0{count}" for kind, count in (row.main_loop or {}).items())
    text = f"loop: {counts}" if row.main_loop else "no loop"
    lines = wrap(text, COLUMNS, initial_indent="    ", subsequent_indent="          ")
    return [line.replace("\0", " ") for line in lines]  # a kind and its count stay together

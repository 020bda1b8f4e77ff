"""Commands of the simulator: sim, bench sim."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from labkit.cli import options as o

Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        help="One per parameter, in order: `f32:1024=random`, `i32:16x64=arange`, `f16:512` (zeros), `f32:8=1,2,3..` "
        "(repeated), `out f32:1024` (must be filled), `@file.npy`, `42`, `0.5`, `null`.",
    ),
]


def sim(
    file: Annotated[str, typer.Argument(help="A CUDA or PTX file.")],
    kernel: Annotated[str | None, typer.Option(help='Name of the extern "C" kernel, if the file has several.')] = None,
    grid: Annotated[str, typer.Option(help="Blocks: X[,Y[,Z]].")] = "1",
    block: Annotated[str, typer.Option(help="Threads of a block: X[,Y[,Z]].")] = "64",
    arg: Arguments = None,
    shared: Annotated[int, typer.Option(help="Bytes of dynamic shared memory.")] = 0,
    macro: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be given several times.")] = None,
    print_values: Annotated[int, typer.Option("--print", help="Show so many values of every array.")] = 0,
    seed: Annotated[int, typer.Option(help="Of random arrays.")] = 0,
    checks: Annotated[bool, typer.Option("--checks/--no-checks", help="Races, uninitialized reads.")] = True,
    truncating_mma: Annotated[bool, typer.Option("--truncating-mma", help="Add as V100 tensor cores do.")] = False,
    annotate: Annotated[bool, typer.Option("--annotate", help="Show the source with the cost of each line.")] = False,
    as_json: o.Json = False,
) -> None:
    """Run a CUDA kernel on the simulated V100: findings, counters, results. Exit code 1 if there are findings.

    Example: `labkit sim add.cu --grid 4 --block 256 --arg f32:1024=random --arg 'out f32:1024' --arg 1024 --print 8`
    """
    import numpy as np

    from labkit.cli.sim_arguments import parse_argument, parse_macro, parse_size
    from labkit.sim.api import run
    from labkit.sim.source import existing_file

    generator = np.random.default_rng(seed)
    args = [parse_argument(text, generator) for text in arg or []]
    result = run(
        existing_file(file),
        kernel,
        parse_size(grid, "grid"),
        parse_size(block, "block"),
        args,
        shared,
        dict(parse_macro(text) for text in macro or []),
        checks=checks,
        truncating_mma=truncating_mma,
    )
    shown = _arrays(args, print_values)
    if as_json:
        o.print_json(result.to_json() | {"arrays": shown})
    else:
        _print_result(result, shown, annotate)
    if not result.ok:
        raise typer.Exit(1)


def bench_sim(as_json: o.Json = False) -> None:
    """Time the simulator on three kernels, plain, with checks, and with counters too.

    Example: `labkit bench sim --json`
    """
    from rich.console import Console

    from labkit.bench.sim_speed import measure, speed_table

    report = measure()
    if as_json:
        o.print_json(report.to_dict())
    else:
        Console().print(speed_table(report))


def _arrays(args: list[Any], count: int) -> dict[str, list[Any]]:
    """The first values of every array, by its position among the arguments."""
    if count <= 0:
        return {}
    arrays = {str(number): getattr(arg, "tensor", arg) for number, arg in enumerate(args)}
    return {number: a.reshape(-1)[:count].tolist() for number, a in arrays.items() if hasattr(a, "reshape")}


def _print_result(result: Any, shown: dict[str, list[Any]], annotate: bool) -> None:
    from rich.console import Console

    print(result)
    if result.output:
        print(f"\nprinted by the kernel:\n{result.output.rstrip()}")
    for number, values in shown.items():
        print(f"\nargument {number}: {' '.join(_shown(value) for value in values)}")
    if annotate:
        print(f"\n{result.annotated() or 'No source to annotate: a PTX file was given.'}")
    print()
    Console().print(result.counters.table())


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

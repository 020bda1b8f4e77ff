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


FINDINGS = 3  # the exit code of a run that found something


def sim(
    file: Annotated[str, typer.Argument(help="A CUDA or PTX file.")],
    kernel: Annotated[
        str | None, typer.Option(help="k, ns::k or k<double,3>, if the file has several kernels.")
    ] = None,
    grid: Annotated[str, typer.Option(help="Blocks: X[,Y[,Z]].")] = "1",
    block: Annotated[str, typer.Option(help="Threads of a block: X[,Y[,Z]].")] = "64",
    arg: Arguments = None,
    shared: Annotated[int, typer.Option(help="Bytes of dynamic shared memory.")] = 0,
    macro: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be given several times.")] = None,
    include: Annotated[list[str] | None, typer.Option(help="Folder of headers; may be given several times.")] = None,
    print_values: Annotated[int, typer.Option("--print", min=0, help="Show so many values of every array.")] = 0,
    seed: Annotated[int, typer.Option(help="Of random arrays.")] = 0,
    checks: Annotated[bool, typer.Option("--checks/--no-checks", help="Races, uninitialized reads.")] = True,
    truncating_mma: Annotated[bool, typer.Option("--truncating-mma", help="Add as V100 tensor cores do.")] = False,
    max_steps: Annotated[int | None, typer.Option(help="Basic blocks after which a launch counts as endless.")] = None,
    shuffle_seed: Annotated[
        int | None, typer.Option(help="Run diverged threads in a random, repeatable order.")
    ] = None,
    set_values: Annotated[
        list[str] | None,
        typer.Option("--set", help="Variable of the file: NAME=f32:16=arange, NAME=42, NAME=@file.npy."),
    ] = None,
    annotate: Annotated[bool, typer.Option("--annotate", help="Show the source with the cost of each line.")] = False,
    as_json: o.Json = False,
) -> None:
    """Run a CUDA kernel on the simulated V100: findings, counters, results.

    Exit codes: 0 no findings; 1 the kernel could not be run; 2 wrong usage; 3 it ran, and there are findings.

    Example: `labkit sim examples/add.cu --grid 4 --block 256 --arg f32:1000=random --arg f32:1000=ones
    --arg 'out f32:1000' --arg 1000 --print 8`
    """
    from labkit.cli.sim_arguments import parse_argument, parse_macro, parse_size, parse_variable, random_generator
    from labkit.sim.api import run
    from labkit.sim.source import existing_file

    generator = random_generator(seed)
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
        max_steps=max_steps,
        shuffle_seed=shuffle_seed,
        include_dirs=include or (),
        variables=dict(parse_variable(text, generator) for text in set_values or []),
    )
    names = [text.partition("=")[0].strip() for text in set_values or []]
    shown = _arrays(args, print_values) | _variables(result, names, print_values)
    if as_json:
        annotated = {"annotated": result.annotated()} if annotate else {}
        o.print_json(result.to_json() | {"arrays": shown} | annotated)
    else:
        _print_result(result, shown, annotate)
    if not result.ok:
        raise typer.Exit(FINDINGS)


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


def _variables(result: Any, names: list[str], count: int) -> dict[str, list[Any]]:
    """The first values, after the launch, of every variable that was set."""
    return {name: result.variable(name)[:count].tolist() for name in names if count > 0}


def _print_result(result: Any, shown: dict[str, list[Any]], annotate: bool) -> None:
    from rich.console import Console

    print(result)
    if result.output:
        print(f"\nprinted by the kernel:\n{result.output.rstrip()}")
    for number, values in shown.items():
        what = f"argument {number}" if number.isdigit() else number
        print(f"\n{what}: {' '.join(_shown(value) for value in values)}")
    if annotate:
        print(f"\n{result.annotated() or 'No source to annotate: a PTX file was given.'}")
    print()
    Console().print(result.counters.table())


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

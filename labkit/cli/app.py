"""The application: what commands there are, and what becomes of errors.

Exit codes: 0 done; 1 a typed error (one line that names the cure, and below it the place to which a compiler
objects; never a traceback); 2 wrong usage;
3 `labkit sim` has findings; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import typer

from labkit.cli import answer, machine, measure
from labkit.cli.attention import bench_attention
from labkit.cli.build import build
from labkit.cli.gdn import bench_gdn
from labkit.cli.gemv import bench_gemv
from labkit.cli.quantize import quantize
from labkit.cli.sim import bench_sim, sim
from labkit.cli.sparse import bench_sparse
from labkit.cli.tune import tune
from labkit.errors import KernelBuildError, LabkitError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Learn, measure and serve large language models on the NVIDIA V100, kernel by kernel.\n\n"
    "Start with `labkit demo`. A model is a directory, a .gguf file, `smollm2`, `labkit-tiny` or `org/name`.",
)
bench = typer.Typer(no_args_is_help=True, help="Measure speed.")
evaluate = typer.Typer(no_args_is_help=True, help="Measure quality.")

app.command()(machine.doctor)
app.command()(answer.demo)
app.command()(answer.generate)
app.command()(answer.chat)
app.add_typer(bench, name="bench")
bench.callback()(lambda: None)
bench.command("run")(measure.bench_run)
bench.command("sim")(bench_sim)
bench.command("gemv")(bench_gemv)
bench.command("sparse")(bench_sparse)
bench.command("attention")(bench_attention)
bench.command("gdn")(bench_gdn)
app.add_typer(evaluate, name="eval")
evaluate.callback()(lambda: None)
evaluate.command("perplexity")(measure.eval_perplexity)
app.command()(measure.fit)
app.command()(build)
app.command()(quantize)
app.command()(sim)
app.command()(tune)
app.command()(machine.serve)


INTERRUPTED = 130  # what typer makes of Ctrl-C
# How long an OpenMP thread spins before it gives its core back. The default is long: on a machine whose cores are all
# busy, a decode step then takes many times as long (measured: 1,700 ms instead of 40 ms beside one other process).
SPINS = "10000"


def main() -> None:
    """Entry point of the ``labkit`` command."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read by OpenMP when torch is loaded, which is not yet
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" for what it cannot
    try:
        _run()
    except BrokenPipeError:  # the reader has seen enough
        _drop_output()
        sys.exit(1)
    except OSError as error:
        reason = " ".join(str(error).split())
        print(f"labkit: Reading or writing failed: {reason}. Check disk space and permissions.", file=sys.stderr)
        _drop_output()
        sys.exit(1)


def _run() -> None:
    try:
        app()
    except LabkitError as error:
        print(f"labkit: {' '.join(str(error).split())}", file=sys.stderr)
        if isinstance(error, KernelBuildError) and error.place:
            print(error.place, file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("\nlabkit: interrupted.", file=sys.stderr)
        raise
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # while an error can still be told: at the interpreter's end it cannot


def _drop_output() -> None:
    """What stdout still holds goes nowhere, so that the interpreter does not try to write it once more."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

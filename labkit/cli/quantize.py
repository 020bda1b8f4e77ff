"""The command that quantizes a model: quantize."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.cli import options as o
from labkit.cli.progress import progress_bar
from labkit.errors import ConfigError, TokenizerError

if TYPE_CHECKING:
    from labkit.awq.quantize import QuantizeReport
    from labkit.awq.settings import QuantizeSettings

WINDOW = 512  # tokens, of the perplexities, where the model takes that many; each window scores its second half


def quantize(
    out: Annotated[str, typer.Option("--out", help="Folder to write: new, empty, or of an interrupted run.")],
    model: o.Model = "smollm2",
    group_size: Annotated[int, typer.Option(help="Inputs that share a scale: 32, 64 or 128.")] = 128,
    format: Annotated[str, typer.Option(help="Of the files: awq (AutoAWQ gemm) or compressed-tensors.")] = "awq",
    method: Annotated[str, typer.Option(help="awq, or rtn: round to nearest, without calibration.")] = "awq",
    skip: Annotated[
        list[str] | None, typer.Option(help="Modules whose name has this (a regular expression) stay 16-bit.")
    ] = None,
    calibration: Annotated[Path | None, typer.Option(help="A UTF-8 text to calibrate on, instead of ours.")] = None,
    windows: Annotated[int, typer.Option(help="Windows of calibration text.")] = 16,
    window: Annotated[int, typer.Option(help="Tokens in a window.")] = 512,
    perplexity: Annotated[bool, typer.Option(help="Measure what was lost, beside round to nearest.")] = True,
    text: Annotated[Path | None, typer.Option(help="A UTF-8 text to measure on; by default a speech of 1862.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Measure on the first tokens of that text only.")] = None,
    as_json: o.Json = False,
) -> None:
    """Quantize a model to 4 bits with AWQ, and say what that costs.

    Repeat an interrupted command to go on where it stopped.

    Example: `labkit quantize -m smollm2 --group-size 64 --out smollm2-awq`
    """
    from labkit.awq.quantize import quantize as run
    from labkit.awq.settings import QuantizeSettings
    from labkit.model.resolve import resolve_model

    settings = QuantizeSettings(group_size, format, method, tuple(skip or ()), windows, window)
    folder, scored = _folder(out), _scored_text(text, settings, calibration, max_tokens) if perplexity else None
    with progress_bar() as progress:
        source = resolve_model(model, progress=lambda what, done, total: progress(done, total, what))
        window_scored = _scored_window(source, scored[0]) if scored else 0
        report = run(source, folder, settings, calibration=calibration, progress=progress)
        document = _document(model, settings, report)
        if scored is not None:
            content, name = scored
            limits = {"window": window_scored, "stride": window_scored // 2, "max_tokens": max_tokens}
            document["perplexity"] = _perplexities(source, folder, settings, content, limits, progress)
            document["text"], document["scored"] = name, {**limits, "dtype": "float32"}
    if as_json:
        o.print_json(document)
    else:
        _print(document)


def _folder(out: str) -> Path:
    if not out:
        raise ConfigError("--out is empty.", cure="Name a folder.")
    if "\0" in out:
        raise ConfigError("--out holds a zero byte.", cure="Name a folder.")
    return Path(os.path.expanduser(out))


def _scored_text(
    text: Path | None, settings: QuantizeSettings, calibration: Path | None, max_tokens: int | None
) -> tuple[str, str]:
    """(the text that perplexities are taken on, its name): wrong ones are told before the work begins."""
    from labkit.awq.calibration import read_text
    from labkit.bench.texts import DEFAULT_TEXT
    from labkit.cli.measure import _read_text

    if max_tokens is not None and max_tokens < 2:
        raise ConfigError(f"max_tokens is {max_tokens}.", cure="Give a whole number from 2, or nothing for all.")
    content = _read_text(text or DEFAULT_TEXT)
    if settings.method == "awq" and content == read_text(calibration):
        cure = "Give another --text or another --calibration, or measure nothing with --no-perplexity."
        raise ConfigError("The text to measure on is the calibration text: that flatters.", cure=cure)
    return content, str(text or DEFAULT_TEXT.name)


def _scored_window(model: Path, text: str) -> int:
    """Tokens that the model sees at once while it is scored: a model or text that cannot be is told before the work.

    Raises TokenizerError for a model without a tokenizer, ConfigError for a text of fewer than two tokens.
    """
    from labkit.awq.calibration import text_ids
    from labkit.awq.source import DenseSource

    source = DenseSource(model)
    try:
        count = len(text_ids(source, text))
    except TokenizerError as error:
        raise TokenizerError(error.message, cure=f"{error.cure} Or measure nothing: --no-perplexity.") from None
    if count < 2:
        cure = "Give a longer --text, or measure nothing with --no-perplexity."
        raise ConfigError(f"The text to measure on has {count} token(s).", cure=cure)
    room = source.model_config.max_position_embeddings - 2  # a begin token, and one that would be generated
    return min(WINDOW, room)


def _document(model: str, settings: QuantizeSettings, report: QuantizeReport) -> dict[str, Any]:
    from labkit.bench.results import measured_here

    return {
        "model": model,
        "out": str(report.out),
        **settings.to_dict(),
        "modules_quantized": len(report.quantized),
        "modules_kept": list(report.kept),
        "layers_resumed": report.resumed,
        "bytes_before": report.source_bytes,
        "bytes": report.bytes,
        "notes": list(report.notes),
        **vars(measured_here()),
    }


def _perplexities(
    source: Path, folder: Path, settings: QuantizeSettings, text: str, limits: dict[str, Any], progress: Any
) -> dict[str, float]:
    """Of the source, of the same model rounded to nearest, and of what was written; all computed in fp32."""
    from labkit.awq.quantize import quantize as run

    scores = {"before": _score(source, text, limits, progress, "before")}
    if settings.method != "rtn":
        with tempfile.TemporaryDirectory(prefix=".rtn-", dir=folder.parent) as scratch:
            run(source, Path(scratch), replace(settings, method="rtn"), progress=progress)
            scores["rtn"] = _score(Path(scratch), text, limits, progress, "round to nearest")
    return scores | {settings.method: _score(folder, text, limits, progress, settings.method)}


def _score(model: Path, text: str, limits: dict[str, Any], progress: Any, what: str) -> float:
    from labkit.bench.perplexity import perplexity
    from labkit.engine.llm import LLM

    def scored(done: int, total: int) -> None:
        progress(done, total, f"perplexity {what}: {done} of {total} tokens")

    with LLM(model.absolute(), dtype="float32") as llm:  # a name that begins with ~ is no home folder by now
        return perplexity(llm, text, **limits, progress=scored).perplexity


NAMES = {"before": "before", "rtn": "round to nearest", "awq": "AWQ"}


def _print(document: dict[str, Any]) -> None:
    console = Console(soft_wrap=True)
    kept = len(document["modules_kept"])
    console.print(f"{document['out']}: {document['modules_quantized']} modules in 4 bits, {kept} in 16 bits")
    console.print(f"weights: {document['bytes_before']:,} bytes before, {document['bytes']:,} now")
    if document["layers_resumed"]:
        console.print(f"{document['layers_resumed']} layers were finished by an interrupted run")
    for note in document["notes"]:
        console.print(note, markup=False)
    if scores := document.get("perplexity"):
        console.print(_table(scores, document))


def _table(scores: dict[str, float], document: dict[str, Any]) -> Table:
    how = f"fp32, windows of {document['scored']['window']} tokens"
    title = f"perplexity of {document['text']} ({how}), measured: {document['device']}, {document['date']}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    table.add_column("weights")
    for heading in ("perplexity", "more than before"):
        table.add_column(heading, justify="right")
    for name, score in scores.items():
        more = "" if name == "before" else f"{score - scores['before']:+.3f}"
        table.add_row(NAMES[name], f"{score:.3f}", more)
    return table

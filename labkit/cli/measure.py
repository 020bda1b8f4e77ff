"""Commands that measure and compute: bench run, eval perplexity, fit."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.cli import options as o
from labkit.cli.progress import counting, progress_bar
from labkit.errors import ConfigError


class Peer(StrEnum):
    """Systems that `bench run` can measure beside labkit."""

    TRANSFORMERS = "transformers"


def bench_run(
    model: o.Model = "smollm2",
    context: Annotated[list[int] | None, typer.Option(help="Prompt tokens; may be given several times.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Sequences at once; may be given several times.")] = None,
    decode_tokens: Annotated[int, typer.Option(help="Tokens that each sequence generates.")] = 32,
    repeats: Annotated[int, typer.Option(help="Runs of each cell after a warm-up; the median counts.")] = 3,
    peer: Annotated[Peer | None, typer.Option(help="Measure this system too, in the same run.")] = None,
    executor: o.Executor = "auto",
    dtype: o.Dtype = "auto",
    kv_cache_dtype: o.KvDtype = "auto",
    quantize_leftovers: o.Leftovers = "none",
    max_seq_len: o.MaxSeqLen = None,
    sparse_prefill: o.SparsePrefill = False,
    sparse_mass: o.SparseMass = None,
    sparse_sink: o.SparseSink = None,
    sparse_recent: o.SparseRecent = None,
    sparse_threshold: o.SparseThreshold = None,
    as_json: o.Json = False,
) -> None:
    """Measure prefill and decode speed over context lengths and batch sizes.

    Example: `labkit bench run -m smollm2 --context 128 --context 1024 --batch 1 --batch 8 --peer transformers`
    """
    from labkit.bench.peer import run_peer_transformers
    from labkit.bench.run import run_bench
    from labkit.engine.llm import LLM

    contexts, batches = context or [128, 1024], batch or [1, 8]
    settings: dict[str, Any] = {"executor": executor, "dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    settings |= {"max_seq_len": max_seq_len, "decode_batch_size": max([8, *batches])}
    settings["quantize_leftovers"] = quantize_leftovers
    settings |= o.sparse(sparse_prefill, sparse_mass, sparse_sink, sparse_recent, sparse_threshold)
    with progress_bar() as progress:
        if peer is Peer.TRANSFORMERS:
            report = run_peer_transformers(
                model, contexts, batches, decode_tokens, repeats, progress=progress, **settings
            )
            document: Any = report.to_dict()
        else:
            with LLM(model, **settings) as llm:
                rows = run_bench(llm, contexts, batches, decode_tokens, repeats, progress=progress)
            document = {"rows": [row.to_dict() for row in rows]}
    if as_json:
        o.print_json(document)
    else:
        _print_bench(document)


def eval_perplexity(
    text: Annotated[Path | None, typer.Argument(help="A UTF-8 text file; by default a speech of 1862.")] = None,
    model: o.Model = "smollm2",
    window: Annotated[int, typer.Option(help="Tokens that the model sees at once.")] = 1024,
    stride: Annotated[int, typer.Option(help="Tokens scored with each window.")] = 512,
    max_tokens: Annotated[int | None, typer.Option(help="Score only the first tokens of the text.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="Also compare with this dtype (float32): argmax agreement and KL divergence.")
    ] = None,
    executor: o.Executor = "auto",
    dtype: o.Dtype = "auto",
    kv_cache_dtype: o.KvDtype = "auto",
    quantize_leftovers: o.Leftovers = "none",
    sparse_prefill: o.SparsePrefill = False,
    sparse_mass: o.SparseMass = None,
    sparse_sink: o.SparseSink = None,
    sparse_recent: o.SparseRecent = None,
    sparse_threshold: o.SparseThreshold = None,
    as_json: o.Json = False,
) -> None:
    """Perplexity of a text, with any KV dtype. Under --quantize-leftovers and --sparse-prefill also what these cost.

    Example: `labkit eval perplexity my.txt -m smollm2 --kv-cache-dtype int8 --reference float32`
    """
    from labkit.bench.leftovers import leftover_cost
    from labkit.bench.perplexity import compare, perplexity
    from labkit.bench.results import measured_here
    from labkit.bench.sparse_cost import sparse_cost
    from labkit.bench.texts import DEFAULT_TEXT
    from labkit.engine.config import EngineConfig
    from labkit.engine.llm import LLM

    content = _read_text(text or DEFAULT_TEXT)
    limits: dict[str, Any] = {"window": window, "stride": stride, "max_tokens": max_tokens}
    settings: dict[str, Any] = {"executor": executor, "max_seq_len": _room_for(window)}
    if reference is not None:
        EngineConfig(model, dtype=reference, **settings)  # a wrong one is told before the scoring, which takes long
    own = {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype, **settings}
    dense = {**own, "quantize_leftovers": quantize_leftovers}
    own |= o.sparse(sparse_prefill, sparse_mass, sparse_sink, sparse_recent, sparse_threshold)
    with LLM(model, quantize_leftovers=quantize_leftovers, **own) as llm, progress_bar() as progress:
        result = perplexity(llm, content, **limits, progress=counting(progress, "scoring"))
        document, device = result.to_dict(), llm.engine.config.placement.device
        if quantize_leftovers != "none":
            with LLM(model, **own) as plain:
                counted = counting(progress, "unpacked:")
                cost = leftover_cost(llm, plain, result, content, max_tokens=max_tokens, progress=counted)
                document["leftovers"] = cost.to_dict()
        if sparse_prefill:
            with LLM(model, **dense) as plain:
                scored = perplexity(plain, content, **limits, progress=counting(progress, "dense:"))
            document["sparse"] = sparse_cost(llm, result, scored)
        if reference is not None:
            with LLM(model, dtype=reference, **settings) as exact:
                compared = counting(progress, "comparing")
                document["comparison"] = compare(llm, exact, content, **limits, progress=compared).to_dict()
    document |= {"text": str(text or DEFAULT_TEXT.name), **vars(measured_here(device))}
    if as_json:
        o.print_json(document)
    else:
        Console().print(_as_table(document))
        for note in document.get("leftovers", {}).get("notes", ()):
            Console().print(note)


def fit(
    model: Annotated[str, typer.Option("-m", "--model", help="A checkpoint, or a name such as Qwen3.5-27B.")],
    gpus: Annotated[int, typer.Option("--gpus", "--tp-size", help="GPUs that share the model.")] = 1,
    gpu_memory_gib: Annotated[float, typer.Option(help="Memory of one GPU in GiB.")] = 16,
    kv_cache_dtype: Annotated[str, typer.Option(help="fp16, int8, int4 or k8v4.")] = "fp16",
    context: Annotated[int | None, typer.Option(help="Tokens that must fit.")] = None,
    slots: Annotated[int, typer.Option(help="Sequences that run at the same time.")] = 8,
    mtp: Annotated[bool, typer.Option("--mtp", help="Load the multi-token prediction block too.")] = False,
    weights: Annotated[str | None, typer.Option(help="Weight format of a named config, such as g128-sym.")] = None,
    packing: Annotated[str, typer.Option(help="Count INT4 weights as in the file, or in labkit's format.")] = "file",
    quantize_leftovers: o.Leftovers = "none",
    as_json: o.Json = False,
) -> None:
    """Which checkpoint fits which GPUs, with how many tokens of context, before anything is loaded.

    Example: `labkit fit -m Qwen3.5-27B --weights g128-sym --gpus 2 --kv-cache-dtype int8 --mtp`
    """
    from labkit.bench.fit import fit as compute

    report = compute(
        model,
        gpus=gpus,
        gpu_memory_gib=gpu_memory_gib,
        kv_cache_dtype=kv_cache_dtype,
        context=context,
        slots=slots,
        mtp=mtp,
        weights=weights,
        packing=packing,
        quantize_leftovers=quantize_leftovers,
    )
    if as_json:
        o.print_json(report.to_dict())
    else:
        Console().print(report.render())


def _room_for(window: int) -> int | None:
    """max_seq_len for windows beyond the engine's own limit of 8192: a begin token before, one more token behind."""
    return window + 2 if window >= 8192 else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", cure="Give a UTF-8 text file.") from None


BENCH_COLUMNS = {
    "system": "system",
    "dtype": "dtype",
    "context": "ctx",
    "batch": "batch",
    "prefill_tokens_per_s": "prefill",
    "decode_tokens_per_s": "decode",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "ceiling_tokens_per_s": "ceiling",
}
BENCH_UNITS = "prefill, decode and ceiling in tokens/s; TTFT and TPOT in seconds"
COMPARISON_COLUMNS = {
    "context": "ctx",
    "batch": "batch",
    "labkit_decode_tokens_per_s": "labkit",
    "transformers_decode_tokens_per_s": "transformers",
    "transformers_dtype": "its dtype",
    "decode_ratio": "ratio",
    "decode_ratio_to_batch_1": "to batch 1",
    "prefill_ratio": "prefill",
}
COMPARISON_UNITS = "decoding in tokens/s, then labkit / transformers: decode, decode to its batch 1, prefill"
LOAD_COLUMNS = {"system": "system", "dtype": "dtype", "load_seconds": "seconds", "peak_memory_bytes": "peak bytes"}


def _print_bench(document: dict[str, Any]) -> None:
    console, rows = Console(), document["rows"]
    where = f"{rows[0]['device']}, {rows[0]['threads']} threads, {rows[0]['date']}" if rows else "nothing measured"
    console.print(_table(rows, BENCH_COLUMNS, f"measured: {where}\n{BENCH_UNITS}"))
    for row in rows:
        if row["error"]:
            console.print(f"{row['system']}, context {row['context']}, batch {row['batch']}: {row['error']}")
    if document.get("comparison"):
        console.print(_table(document["comparison"], COMPARISON_COLUMNS, COMPARISON_UNITS))
    if document.get("loads"):
        console.print(_table(document["loads"], LOAD_COLUMNS, "loading, each in a process of its own"))


def _table(rows: list[dict[str, Any]], columns: dict[str, str], title: str) -> Table:
    """Narrow enough for a terminal of 80 columns; what is wider yet is folded, since a cut number is a wrong one."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for heading in columns.values():
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(row[name]) for name in columns))
    return table


def _as_table(document: dict[str, Any]) -> Table:
    table = Table(title="perplexity", show_header=False)
    table.add_column("")
    table.add_column("", justify="right", overflow="fold")
    flat = {**document, **document.get("leftovers", {}), **document.get("sparse", {})}
    flat |= document.get("comparison", {})
    for name, value in flat.items():
        if name not in ("leftovers", "sparse", "comparison", "notes"):
            table.add_row(name.replace("_", " "), _shown(value))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:,.2f}"
    return "-" if value is None else str(value)

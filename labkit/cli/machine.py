"""Commands about this machine: doctor, serve."""

from __future__ import annotations

from typing import Annotated

import typer

from labkit.cli import options as o


def doctor(as_json: o.Json = False) -> None:
    """Say what this machine can do, and the cure for each gap.

    Example: `labkit doctor --json`
    """
    from rich.console import Console

    from labkit.lab.doctor import diagnose

    report = diagnose()
    if as_json:
        o.print_json(report.to_dict())
    else:
        report.render(Console())
    if not report.ok_to_learn:
        raise typer.Exit(1)


def serve(
    model: o.Model = "smollm2",
    host: Annotated[str, typer.Option(help="Address to listen on; only this machine by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="The model's name for clients.")] = None,
    executor: o.Executor = "auto",
    dtype: o.Dtype = "auto",
    kv_cache_dtype: o.KvDtype = "auto",
    max_seq_len: o.MaxSeqLen = None,
    decode_batch_size: o.BatchSize = 8,
    quantize_leftovers: o.Leftovers = "none",
    sparse_prefill: o.SparsePrefill = False,
    sparse_mass: o.SparseMass = None,
    sparse_sink: o.SparseSink = None,
    sparse_recent: o.SparseRecent = None,
    sparse_threshold: o.SparseThreshold = None,
) -> None:
    """Start an OpenAI-compatible server.

    Example: `labkit serve -m smollm2 --port 8000`
    """
    import serve as server

    server.run(
        model=model,
        host=host,
        port=port,
        served_model_name=served_model_name,
        executor=executor,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        max_seq_len=max_seq_len,
        decode_batch_size=decode_batch_size,
        quantize_leftovers=quantize_leftovers,
        **o.sparse(sparse_prefill, sparse_mass, sparse_sink, sparse_recent, sparse_threshold),
    )

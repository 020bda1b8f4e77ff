"""``python -m serve -m MODEL``: the server from the command line."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from labkit.errors import LabkitError
from serve import run

app = typer.Typer(add_completion=False)


@app.command()
def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Directory, .gguf file or name.")] = "smollm2",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
    executor: Annotated[str, typer.Option(help="Where operations run: auto, cuda, torch or sim.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, fp16, int8, int4 or k8v4.")] = "auto",
    max_seq_len: Annotated[int | None, typer.Option(help="Tokens of prompt and answer together.")] = None,
    decode_batch_size: Annotated[int, typer.Option(help="Answers that grow at the same time.")] = 8,
    quantize_leftovers: Annotated[str, typer.Option(help="Pack unquantized matrices: none, int8 or int4.")] = "none",
    sparse_prefill: Annotated[bool, typer.Option(help="Long prompts attend to a choice of pages.")] = False,
    sparse_mass: Annotated[float | None, typer.Option(help="Share of the estimated attention to keep.")] = None,
    sparse_sink: Annotated[int | None, typer.Option(help="First pages that are always kept.")] = None,
    sparse_recent: Annotated[int | None, typer.Option(help="Pages before the queries that are always kept.")] = None,
    sparse_threshold: Annotated[int | None, typer.Option(help="Tokens of context from which on it holds.")] = None,
) -> None:
    """Serve a model over HTTP, in the shape of the OpenAI API."""
    settings: dict[str, Any] = {
        "executor": executor,
        "dtype": dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "max_seq_len": max_seq_len,
        "decode_batch_size": decode_batch_size,
        "quantize_leftovers": quantize_leftovers,
        "sparse_prefill": sparse_prefill,
        "sparse_mass": sparse_mass,
        "sparse_sink": sparse_sink,
        "sparse_recent": sparse_recent,
        "sparse_threshold": sparse_threshold,
    }
    try:
        run(model, host=host, port=port, served_model_name=served_model_name, **settings)
    except LabkitError as error:
        typer.echo(f"labkit: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app()

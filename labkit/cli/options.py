"""Options that mean the same in every command, and what is made of them."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from labkit.engine.sampling_params import SamplingParams

Model = Annotated[str, typer.Option("-m", "--model", help="Directory, .gguf file, smollm2, labkit-tiny or org/name.")]
Executor = Annotated[str, typer.Option(help="Where operations run: auto, cuda, torch or sim.")]
Dtype = Annotated[
    str, typer.Option(help="Of activations: auto (bf16; fp16 for cuda and sim), bfloat16, float16 or float32 (exact).")
]
KvDtype = Annotated[
    str, typer.Option("--kv-cache-dtype", help="Of KV pages: auto (the model dtype), fp16, int8, int4 or k8v4.")
]
MaxSeqLen = Annotated[int | None, typer.Option(help="Tokens of prompt and output together.")]
Leftovers = Annotated[
    str, typer.Option("--quantize-leftovers", help="Pack matrices that are not quantized: none, int8 or int4.")
]
SparsePrefill = Annotated[
    bool, typer.Option("--sparse-prefill", help="Prefill attends to a choice of pages from 8,192 tokens of context on.")
]
SparseMass = Annotated[
    float | None, typer.Option(help="Share of the estimated attention that the kept pages hold: 0.95; 1 keeps all.")
]
SparseSink = Annotated[int | None, typer.Option(help="First pages of 64 tokens that are always kept: 1.")]
SparseRecent = Annotated[int | None, typer.Option(help="Pages before the queries that are always kept: 4.")]
SparseThreshold = Annotated[int | None, typer.Option(help="Tokens of context from which on prefill is sparse: 8192.")]
BatchSize = Annotated[int, typer.Option("--decode-batch-size", help="Sequences that run at the same time.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Prompt = Annotated[str, typer.Option("-p", "--prompt", help="The text to continue or the question.")]
MaxTokens = Annotated[int, typer.Option(help="Tokens to generate at most.")]
Temperature = Annotated[float, typer.Option(help="0 takes the most likely token.")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens that hold this mass together.")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")]
MinP = Annotated[float, typer.Option(help="Keep tokens that reach this share of the best one's probability.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1 makes tokens that were seen less likely.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling reproducible.")]
Stop = Annotated[list[str] | None, typer.Option(help="End at this text; may be given several times.")]


def sampling(
    max_tokens: int,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    stop: list[str] | None = None,
) -> SamplingParams:
    """The sampling settings of a command line."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
    )


def sparse(
    prefill: bool, mass: float | None, sink: int | None, recent: int | None, threshold: int | None
) -> dict[str, Any]:
    """The engine's settings of sparse prefill, from a command line."""
    given = {"mass": mass, "sink": sink, "recent": recent, "threshold": threshold}
    return {"sparse_prefill": prefill, **{f"sparse_{name}": value for name, value in given.items()}}


def print_json(document: Any) -> None:
    """One JSON document on stdout; all ASCII where stdout is not UTF-8, so that nothing in it is lost."""
    ascii_only = not sys.stdout.encoding.lower().startswith("utf")
    json.dump(document, sys.stdout, ensure_ascii=ascii_only, indent=2, default=str)
    print()

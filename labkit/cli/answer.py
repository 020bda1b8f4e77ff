"""Commands that answer: demo, generate, chat."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli import options as o
from labkit.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from labkit.engine.llm import LLM
    from labkit.engine.outputs import RequestOutput

QUESTION = "What is the capital of France?"


def demo(
    model: o.Model = "smollm2",
    prompt: o.Prompt = QUESTION,
    max_tokens: o.MaxTokens = 128,
    executor: o.Executor = "auto",
    dtype: o.Dtype = "auto",
    kv_cache_dtype: o.KvDtype = "auto",
    quantize_leftovers: o.Leftovers = "none",
    as_json: o.Json = False,
) -> None:
    """Ask a real model one question and show what happened.

    Example: `labkit demo -p "Name three colours."`
    """
    from labkit.bench.results import measured_here
    from labkit.cli.demo_table import demo_figures, demo_table
    from labkit.engine.llm import LLM

    settings: dict[str, Any] = {"executor": executor, "dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    with LLM(model, quantize_leftovers=quantize_leftovers, **settings) as llm:
        params = o.sampling(max_tokens, temperature=0.0)
        pieces = llm.stream_chat([{"role": "user", "content": prompt}], params)
        if not as_json:
            print(f"\n  {prompt}\n")
        output = _show(pieces, quiet=as_json, indent="  ")
        figures, origin = demo_figures(llm, output), measured_here(llm.engine.config.placement.device)
    if as_json:
        o.print_json({"prompt": prompt, "text": output.text, **figures, **vars(origin)})
    else:
        _console().print(demo_table(figures))


def generate(
    prompt: o.Prompt,
    model: o.Model = "smollm2",
    max_tokens: o.MaxTokens = 128,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    seed: o.Seed = None,
    stop: o.Stop = None,
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
    """Continue a text, streaming.

    Example: `labkit generate -m smollm2 -p "Once upon a time" --max-tokens 40`
    """
    from labkit.engine.llm import LLM

    params = o.sampling(max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed, stop)
    settings: dict[str, Any] = {"executor": executor, "dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    settings |= o.sparse(sparse_prefill, sparse_mass, sparse_sink, sparse_recent, sparse_threshold)
    with LLM(model, quantize_leftovers=quantize_leftovers, max_seq_len=max_seq_len, **settings) as llm:
        output = _show(llm.stream(prompt, params), quiet=as_json)
    if as_json:
        o.print_json(_as_json(prompt, output))


def chat(
    model: o.Model = "smollm2",
    system: Annotated[str | None, typer.Option(help="System message at the start.")] = None,
    max_tokens: o.MaxTokens = 512,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    seed: o.Seed = None,
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
) -> None:
    """Talk to a model. /reset forgets the conversation; Ctrl-C stops an answer; /exit or Ctrl-D ends.

    Example: `labkit chat -m smollm2 --temperature 0.7`
    """
    from labkit.engine.llm import LLM

    params = o.sampling(max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed)
    settings: dict[str, Any] = {"executor": executor, "dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    settings |= o.sparse(sparse_prefill, sparse_mass, sparse_sink, sparse_recent, sparse_threshold)
    with LLM(model, quantize_leftovers=quantize_leftovers, max_seq_len=max_seq_len, **settings) as llm:
        _converse(llm, params, [{"role": "system", "content": system}] if system else [])


def _converse(llm: LLM, params: Any, start: list[dict[str, str]]) -> None:
    history = list(start)
    while (line := _ask()) is not None:
        if line == "/reset":
            history = list(start)
        elif line:
            history.append({"role": "user", "content": line})
            if (answer := _answer(llm, params, history)) is None:
                history.pop()
            else:
                history.append({"role": "assistant", "content": answer})


def _answer(llm: LLM, params: Any, history: list[dict[str, str]]) -> str | None:
    """The model's turn; None if the user stopped it or the conversation cannot go on with this line."""
    try:
        return _show(llm.stream_chat(history, params)).text
    except KeyboardInterrupt:
        print(" [stopped]")
    except RequestError as error:
        if not sys.stdin.isatty():  # a script shall notice; a person may try something else
            raise
        print(f"labkit: {error}", file=sys.stderr)
    return None


def _ask() -> str | None:
    """The next line of the user's, None at the end."""
    if sys.stdin is None:  # closed by who started this process
        return None
    try:
        line = input("you> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(f"A line that you sent cannot be read: {error}.", cure="Send UTF-8 text.") from None
    return None if line in ("/exit", "/quit") else line


def _show(pieces: Generator[str, None, RequestOutput], quiet: bool = False, indent: str = "") -> RequestOutput:
    """Print a stream as it comes; returns the whole output."""
    if not quiet:
        print(indent, end="")
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            if not quiet:
                print()
            return end.value
        if not quiet:
            print(piece, end="", flush=True)


def _as_json(prompt: str, output: RequestOutput) -> dict[str, Any]:
    answer = output.completions[0]
    return {
        "prompt": prompt,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": len(output.prompt_ids),
        "ttft_seconds": answer.metrics.ttft,
        "tpot_seconds": answer.metrics.tpot,
    }


def _console() -> Any:
    from rich.console import Console

    return Console()

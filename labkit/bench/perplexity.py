"""Perplexity of a text, and how far one setting of the engine moves the logits of another.

    perplexity = exp(-1/N sum_t log p(x_t | x_<t)),   N scored tokens

taken over sliding windows, so that the context before a token is never shorter than ``window - stride`` once the text
is that long. Only figures of the same text, tokenizer, window and stride compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.bench.results import dtype_name
from labkit.bench.windows import Window, check_room, sliding_windows, text_tokens
from labkit.engine.llm import LLM
from labkit.errors import ConfigError

Progress = Callable[[int, int], None]  # tokens scored so far, tokens to score
ROWS_AT_A_TIME = 128  # rows of logits widened to fp64 together: 50 MB at a vocabulary of 49,152


@dataclass(frozen=True)
class PerplexityResult:
    """perplexity = exp(nats); nats: mean negative log-likelihood per token; tokens: how many were scored."""

    perplexity: float
    nats: float
    tokens: int
    window: int
    stride: int
    kv_dtype: str
    dtype: str
    model: str
    quantize_leftovers: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ComparisonResult:
    """How the logits of one engine differ from those of a reference, over the scored tokens of a text.

    argmax_agreement: share of positions with the same best token, 0 to 1.
    mean_kl, max_kl: Kullback-Leibler divergence KL(reference || engine) per position, in nats.
    """

    argmax_agreement: float
    mean_kl: float
    max_kl: float
    tokens: int
    window: int
    stride: int
    dtype: str
    kv_dtype: str
    reference_dtype: str
    reference_kv_dtype: str
    model: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def perplexity(
    llm: LLM,
    text: str,
    *,
    window: int = 1024,
    stride: int = 512,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> PerplexityResult:
    """Score a text. window, stride: in tokens; max_tokens: score only the beginning of the text.

    Raises ConfigError for impossible windows or a text of fewer than two tokens, TokenizerError without a tokenizer.
    """
    prefix, ids = text_tokens(llm, text, max_tokens)
    check_room(llm, window, len(prefix))
    total = 0.0
    for part in sliding_windows(len(ids), window, stride):
        total += _negative_log_likelihood(_scored_rows(llm, prefix, ids, part), ids[part.first : part.end])
        if progress:
            progress(part.end - 1, len(ids) - 1)
    nats, settings = total / (len(ids) - 1), llm.engine.config
    return PerplexityResult(
        perplexity=math.exp(nats),
        nats=nats,
        tokens=len(ids) - 1,
        window=window,
        stride=stride,
        kv_dtype=settings.kv_format.label,
        dtype=dtype_name(settings.torch_dtype),
        model=str(settings.model),
        quantize_leftovers=settings.quantize_leftovers,
    )


def compare(
    llm: LLM,
    reference: LLM,
    text: str,
    *,
    window: int = 1024,
    stride: int = 512,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> ComparisonResult:
    """Compare two engines on the same model: one with ``dtype="auto"`` against one with "float32", for example.

    Raises ConfigError as ``perplexity`` does, and if the two do not share one vocabulary.
    """
    prefix, ids = text_tokens(reference, text, max_tokens)
    if text_tokens(llm, text, max_tokens) != (prefix, ids) or _vocabulary(llm) != _vocabulary(reference):
        raise ConfigError("The two models read the text as different tokens.", cure="Compare one model with itself.")
    for engine in (llm, reference):
        check_room(engine, window, len(prefix))
    same, divergences = 0, list[Tensor]()
    for part in sliding_windows(len(ids), window, stride):
        ours, theirs = (_scored_rows(engine, prefix, ids, part) for engine in (llm, reference))
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        divergences.append(_divergence(theirs, ours))
        if progress:
            progress(part.end - 1, len(ids) - 1)
    return _comparison(llm, reference, same, torch.cat(divergences), window, stride)


def _comparison(llm: LLM, reference: LLM, same: int, kl: Tensor, window: int, stride: int) -> ComparisonResult:
    ours, theirs = llm.engine.config, reference.engine.config
    return ComparisonResult(
        argmax_agreement=same / len(kl),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        tokens=len(kl),
        window=window,
        stride=stride,
        dtype=dtype_name(ours.torch_dtype),
        kv_dtype=ours.kv_format.label,
        reference_dtype=dtype_name(theirs.torch_dtype),
        reference_kv_dtype=theirs.kv_format.label,
        model=str(ours.model),
    )


def _vocabulary(llm: LLM) -> int:
    return llm.engine.model_config.vocab_size


def _scored_rows(llm: LLM, prefix: list[int], ids: list[int], part: Window) -> Tensor:
    """fp32 [scored tokens, V]: row i predicts token ``part.first + i``, so it stands one position earlier."""
    rows = llm.logits(prefix + ids[part.start : part.end])
    shift = len(prefix) - part.start - 1
    return rows[part.first + shift : part.end + shift]


def _negative_log_likelihood(logits: Tensor, targets: list[int]) -> float:
    """Sum over the rows, in nats, in fp64."""
    total = 0.0
    for rows, ids in zip(logits.split(ROWS_AT_A_TIME), torch.tensor(targets).split(ROWS_AT_A_TIME), strict=True):
        total -= float(rows.double().log_softmax(-1).gather(1, ids[:, None]).sum())
    return total


def _divergence(reference: Tensor, other: Tensor) -> Tensor:
    """fp64 [rows]: KL(reference || other) of each row's distribution."""
    parts = []
    for p, q in zip(reference.split(ROWS_AT_A_TIME), other.split(ROWS_AT_A_TIME), strict=True):
        log_p, log_q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        parts.append((log_p.exp() * (log_p - log_q)).sum(-1))
    return torch.cat(parts)

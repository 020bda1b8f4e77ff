"""Does the model fit? Memory arithmetic for one GPU of a tensor-parallel group, before anything is loaded.

    usable memory - overhead - weights - MTP block - recurrent states = room for KV pages

``fit("Qwen3.5-27B", weights="g128-sym", gpus=2, kv_cache_dtype="int8", context=262_144)`` answers with a report: the
bytes of every term, how many tokens of KV the rest holds, whether that is enough, and if not, what would help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.bench.fit_bytes import kv_bytes_per_token, split_problems, state_bytes_per_sequence, weight_bytes
from labkit.bench.fit_leftovers import pack_leftovers
from labkit.bench.fit_report import GIB, FitReport, FitRequest
from labkit.bench.fit_weights import WeighedModel, weigh
from labkit.errors import ConfigError

PAGE_TOKENS = 64


def fit(
    model: str | Path | Mapping[str, Any],
    *,
    gpus: int = 1,
    gpu_memory_gib: float = 16,
    kv_cache_dtype: str = "fp16",
    context: int | None = None,
    slots: int = 8,
    mtp: bool = False,
    weights: str | None = None,
    packing: str = "file",
    reserved_gib: float = 0.5,
    overhead_gib: float = 1.0,
    quantize_leftovers: str = "none",
) -> FitReport:
    """Compute the memory budget; see ``FitRequest`` for the arguments and ``weigh`` for ``model`` and ``weights``.

    quantize_leftovers: "int4" or "int8" counts the matrices that are left in 16 bits as the loader would pack them.

    A model that does not fit is an answer, not an error. Raises ConfigError for impossible arguments (a number of GPUs
    that does not divide the heads, say) and the errors of ``weigh`` for the model.
    """
    request = FitRequest(gpus, gpu_memory_gib, kv_cache_dtype, context, slots, mtp, packing, reserved_gib, overhead_gib)
    weighed = pack_leftovers(weigh(model, weights), quantize_leftovers)
    _check(weighed, request)
    report = _budget(weighed, request)
    return report if report.fits else replace(report, reason=f"{report.reason} {_cure(weighed, report)}")


def _check(weighed: WeighedModel, request: FitRequest) -> None:
    for problem in split_problems(weighed, request.gpus):
        raise ConfigError(problem, cure="Choose another number of GPUs.")
    if request.mtp and not any(weight.module.is_mtp for weight in weighed.weights):
        raise ConfigError(f"{weighed.name} has no MTP block.", cure="Leave MTP off.")


def _budget(weighed: WeighedModel, request: FitRequest) -> FitReport:
    config = weighed.geometry.config
    main = [weight for weight in weighed.weights if not weight.module.is_mtp]
    mtp = [weight for weight in weighed.weights if weight.module.is_mtp and request.mtp]
    main_bytes, mtp_bytes = (weight_bytes(part, config.num_key_value_heads, request) for part in (main, mtp))
    state, per_token = state_bytes_per_sequence(config, request.gpus), kv_bytes_per_token(config, request)
    left = request.usable_bytes - request.overhead_bytes - main_bytes - mtp_bytes - state * request.slots
    max_tokens = max(0, left // (per_token * PAGE_TOKENS) * PAGE_TOKENS)
    repacked = weight_bytes(main, config.num_key_value_heads, replace(request, packing="labkit"))
    reason = _shortfall(request, left, max_tokens, config.max_position_embeddings)
    return FitReport(
        model=weighed.name,
        weights=weighed.about,
        request=request,
        parameters=sum(weight.module.parameters for weight in main),
        weight_bytes=main_bytes,
        labkit_packing_bytes=repacked - main_bytes,
        mtp_bytes=mtp_bytes,
        state_bytes=state * request.slots,
        state_bytes_per_sequence=state,
        kv_bytes_left=left,
        kv_bytes_per_token=per_token,
        max_tokens=max_tokens,
        max_position=config.max_position_embeddings,
        fits=not reason,
        reason=reason,
    )


def _shortfall(request: FitRequest, left: int, max_tokens: int, max_position: int) -> str:
    """Why it does not fit; empty if it does."""
    context = request.context or PAGE_TOKENS
    if context > max_position:
        return f"The model's positions end at {max_position:,}, before a context of {context:,} tokens."
    if left < 0:
        return f"Weights and states alone need {-left / GIB:.2f} GiB more per GPU."
    if max_tokens < context:
        return f"A context of {context:,} tokens is asked for, and {max_tokens:,} fit."
    return ""


def _cure(weighed: WeighedModel, report: FitReport) -> str:
    """The smallest change that makes it fit."""
    if (report.request.context or 0) > report.max_position:
        return "Ask for a shorter context."
    for words, request in _changes(report.request):
        if next(split_problems(weighed, request.gpus), None) is None:
            changed = _budget(weighed, request)
            if changed.fits:
                return f"{words} it would fit ({changed.max_tokens:,} tokens)."
    return "Use smaller weights (a 4-bit checkpoint, a smaller model), more GPUs or larger ones."


def _changes(request: FitRequest) -> Iterator[tuple[str, FitRequest]]:
    """Cheapest first: fewer slots, smaller KV, both, then more GPUs."""
    one_slot = replace(request, slots=1)
    if request.slots > 1:
        yield "With one slot", one_slot
    for dtype in ("int8", "int4"):
        yield f"With {dtype} KV", replace(request, kv_cache_dtype=dtype)
        yield f"With {dtype} KV and one slot", replace(one_slot, kv_cache_dtype=dtype)
    for gpus in (2, 4, 8):
        if gpus > request.gpus:
            yield f"On {gpus} GPUs", replace(request, gpus=gpus)

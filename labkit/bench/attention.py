"""``labkit bench attention``: paged attention beside the library's, in one run.

Decode is bound by the bytes of K and V: its figures are GB/s of what the pages hold, scales included, and their share
of a large copy's bandwidth, bytes read plus bytes written, measured in the same run. Prefill is bound by arithmetic:
TFLOP/s of the pairs that a causal mask leaves. Calls stand in CUDA graphs that rotate over buffers larger than twice
the L2 cache together; the median of ten replays.

Beside them torch's scaled_dot_product_attention, on a dense fp16 cache, and on the pages copied (and dequantized) into
one in the same call. For decode it is asked in two ways, by query heads and with the heads of a group as rows, and the
faster one counts. Left out is what takes over a quarter of a second, and the library where the memory does not hold
what it needs besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from labkit.bench.attention_calls import (
    DENSE,
    GATHERED,
    Attend,
    by_groups,
    by_heads,
    decode_calls,
    dense_calls,
    gathered_calls,
    prefill_calls,
    queries,
)
from labkit.bench.attention_cases import DecodeCase, PrefillCase
from labkit.bench.attention_data import Pool, random_pool
from labkit.bench.attention_times import AttentionBench, DecodeTimes, PrefillTimes
from labkit.bench.clock import (
    Clock,
    Progress,
    Seconds,
    copy_gb_per_s,
    current_gpu,
    fitting,
    origin,
    seconds_if_it_fits,
    sources_digest,
    timed,
)
from labkit.ops.ladders import LADDERS

DECODE, PREFILL = "attention_decode", "attention_prefill"
LIBRARY = (GATHERED, DENSE)


def bench_attention(
    decode: Sequence[DecodeCase],
    prefill: Sequence[PrefillCase],
    kv_dtypes: Sequence[str],
    all_rungs: bool = False,
    progress: Progress | None = None,
) -> AttentionBench:
    """Measure on the current GPU. Raises ExecutorError without one, or if its memory does not hold a case."""
    device = current_gpu("labkit bench attention")
    copy = copy_gb_per_s(device)
    decoded, prefilled = measure(decode, prefill, kv_dtypes, device, Clock.of(device), all_rungs, progress)
    return AttentionBench(*origin(device, timed_kernels()), copy, tuple(decoded), tuple(prefilled))


def timed_kernels() -> str:
    """A digest of the ladders' sources."""
    return sources_digest((op, rung) for op in (DECODE, PREFILL) for rung in _rungs(op))


def measure(
    decode: Sequence[DecodeCase],
    prefill: Sequence[PrefillCase],
    kv_dtypes: Sequence[str],
    device: torch.device,
    clock: Clock,
    all_rungs: bool = False,
    progress: Progress | None = None,
) -> tuple[list[DecodeTimes], list[PrefillTimes]]:
    """All cases in all KV dtypes. Raises ExecutorError if the device's memory does not hold one."""
    decoded, prefilled = list[DecodeTimes](), list[PrefillTimes]()
    cases: list[DecodeCase | PrefillCase] = [*decode, *prefill]
    for done, case in enumerate(cases):
        if progress:
            progress(done, len(cases), str(case))
        with fitting(case, "Leave it out with --context or --batch."):
            if isinstance(case, DecodeCase):
                decoded += _decode(case, kv_dtypes, device, clock, all_rungs)
            else:
                prefilled += _prefill(case, kv_dtypes, device, clock, all_rungs)
    return decoded, prefilled


def _decode(
    case: DecodeCase, kv_dtypes: Sequence[str], device: torch.device, clock: Clock, all_rungs: bool
) -> Iterator[DecodeTimes]:
    q = queries(case.geometry, case.batch, device)
    asked = q[:, None]  # one row each
    make = partial(random_pool, case.geometry, sequences=case.batch, rows=1, context=case.context, device=device)
    attend, dense = _faster(asked, _caches(case, case.batch, clock.copies(case.kv_bytes("fp16")), device), clock)
    rungs = (None, *(_rungs(DECODE) if all_rungs else ()))
    for kv in kv_dtypes:
        pool = make(kv, copies=clock.copies(case.kv_bytes(kv)))
        calls = {
            **decode_calls(q, pool, rungs),
            GATHERED: gathered_calls(attend, [asked] * len(pool.batches), pool),
        }
        yield DecodeTimes(case, kv, {**timed(calls, clock, LIBRARY), **dense})


def _faster(q: Tensor, caches: list[tuple[Tensor, Tensor]], clock: Clock) -> tuple[Attend, Seconds]:
    """The faster way of asking the library, and how long it takes."""
    ways: tuple[Attend, ...] = (by_heads, by_groups)
    found = [(seconds_if_it_fits(dense_calls(way, [q] * len(caches), caches), clock), way) for way in ways]
    measured = [(seconds, way) for seconds, way in found if seconds is not None]
    if not measured:
        return by_heads, {}
    seconds, way = min(measured, key=lambda each: each[0])
    return way, {DENSE: seconds}


def _prefill(
    case: PrefillCase, kv_dtypes: Sequence[str], device: torch.device, clock: Clock, all_rungs: bool
) -> Iterator[PrefillTimes]:
    caches = _caches(case, 1, clock.copies(case.moved_bytes("fp16")), device)
    qs = [queries(case.geometry, case.chunk, device) for _ in caches]
    dense = timed({DENSE: dense_calls(by_heads, [q[None] for q in qs], caches)}, clock, LIBRARY)
    rungs = _rungs(PREFILL) if all_rungs else _rungs(PREFILL)[-1:]
    for kv in kv_dtypes:
        pool = _pool(case, kv, clock, device)
        qs = [queries(case.geometry, case.chunk, device) for _ in pool.batches]
        calls = {
            **prefill_calls(qs, pool, rungs),
            GATHERED: gathered_calls(by_heads, [q[None] for q in qs], pool),
        }
        yield PrefillTimes(case, kv, {**timed(calls, clock, LIBRARY), **dense})


def _pool(case: PrefillCase, kv: str, clock: Clock, device: torch.device) -> Pool:
    copies = clock.copies(case.moved_bytes(kv))
    sizes = {"sequences": 1, "rows": case.chunk, "context": case.context, "copies": copies}
    return random_pool(case.geometry, kv, **sizes, device=device)


def _caches(
    case: DecodeCase | PrefillCase, sequences: int, count: int, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Dense K and V, fp16 [sequences, kv_heads, context, D], ``count`` times."""
    size = sequences, case.geometry.kv_heads, case.context, case.geometry.head_dim
    new = partial(torch.randn, size, dtype=torch.float16, device=device)
    return [(new(), new()) for _ in range(count)]


def _rungs(op: str) -> tuple[str, ...]:
    return LADDERS[op].rungs if op in LADDERS else ()

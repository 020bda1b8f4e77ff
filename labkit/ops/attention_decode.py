"""Attention of the newest rows of each sequence over its pages, for decoding and for checking drafted tokens.

    out[r, h] = sum over tokens t of softmax_t(q[r, h] . k[t] scale) v[t]    (times sigmoid(gate[r, h]))

over the tokens that row r sees: with R rows of a sequence of L tokens, its row i sees tokens 0 .. L - R + i. Query head
h reads KV head h // group. Softmax and sums are fp32, and the result is rounded once. Dividing the context and adding
up by log-sum-exp: Flash-Decoding (Dao et al. 2023); sharing a load of K and V among the query heads of a group: XQA
(TensorRT-LLM).

The wide rung rounds more. Where its result must be nearer than this, ask for ``5_tensor_cores``, which does not:

*Quantized keys* meet a query of 16 bits: 64 elements share a step, a 32,512th of their largest. A score is off by up to

    scale * (half a step of q * sum of |k|, summed over the stretches of 64 elements)

and so is lse; a token's weight is off by up to twice that part of itself, and the result by that part of the weighted
sum of |v|. It takes large scores, not only outliers: with gaussian q and k lse was off by about a 100,000th of the
largest score (2e-3 to 8e-3 at 200 to 350, 6e-3 to 2e-2 at 900 to 1,200; measured on the simulator, D 64), and two
tokens that nearly tie there share their weight differently by as much. An element of q a thousand times as large as
those beside it costs them a hundredth of their size.

*Weights times values* are summed in halves, 32 tokens at a time, with weights of a 32nd at most. Where all values are
65504, the last rounding may go up, to infinity. Beside scores of 9e7 and more (2^27 in units of log 2) a float has no
room for that 32nd: tokens that tie weigh 1 each, and where the values of 32 tokens add up to more than 65504, the
result is infinite or NaN.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.attention_checks import check_attention, check_for_kernels, check_rung, checked_scale
from labkit.ops.attention_decode_plan import (
    MOST_SPLITS,
    SPLIT_RUNGS,
    WARPS,
    Slices,
    counters,
    most_queries,
    record_floats,
    resident_blocks,
    splits,
)
from labkit.ops.attention_torch import attend
from labkit.ops.capability import is_v100
from labkit.ops.checks import WARP, aligned, chosen_rung, span
from labkit.ops.multiprocessors import processors
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages
from labkit.ops.split_k import arrival_counters

RUNGS = ["1_warp_per_head", "2_packed_group", "3_split_kv", "4_wide", "5_tensor_cores"]
MOST_ROWS = 8  # of one sequence
# Queries from which on the tensor cores need fewer instructions for every head dim and format, counted in sm_70 machine
# code. Their tile has eight rows in any case.
TENSOR_QUERIES = 4


def attention_decode(
    q: Tensor,
    pages: KVPages,
    batch: PagedBatch,
    *,
    scale: float | None = None,
    gate: Tensor | None = None,
    lse: Tensor | None = None,
    rung: str | None = None,
    split_count: int | None = None,
) -> Tensor:
    """q: [T, heads, D], rotated where the pages rotate (``pages.rotated``). Returns [T, heads, D] in q's dtype.

    Up to 8 rows of each sequence; the kernels take fp16 q, fp16, INT8 or INT4 pages, and D of 64, 128 or 256.
    scale: D^-0.5 unless given; above 0. gate: [T, heads, D] in q's dtype, any strides; the result is multiplied by its
    sigmoid. lse: dense fp32 [T, heads], filled with the natural logarithm of each row's sum of exponentials. rung: of
    the ladder, or another that lies in its folder. split_count: blocks that share the longest context, 1 to 256, more
    than 1 only for rungs that split; by all lengths and the GPU unless given. torch has neither, but refuses what is
    none.

    Without a rung, ``5_tensor_cores`` runs on a V100 where rows times query heads of a KV head are 4 or more, else
    ``4_wide``; on newer GPUs, which emulate that instruction, always ``4_wide``. (Chosen by counting instructions;
    nobody has measured it on a V100.)

    Lengths and pages are read on the device: a captured launch serves whatever they are then, up to the table's width.
    (Its blocks keep their number of pages: it is best made with a table about as wide as the sequences will be.)
    Raises KernelArgumentError for what does not fit.
    """
    check_attention("attention_decode", q, pages, batch, gate, lse)
    scale = checked_scale("attention_decode", scale, pages.head_dim)
    check_rung("attention_decode", rung, RUNGS)
    _check_splits(rung, split_count)
    if executor_for(q, pages.k.values) == "torch":
        return attend(q, pages, batch, scale, gate, lse)
    check_for_kernels("attention_decode", q, pages, gate)
    if batch.most_rows > MOST_ROWS:
        message = f"attention_decode: a sequence has {batch.most_rows} rows; its kernels take up to {MOST_ROWS}."
        raise KernelArgumentError(message, cure="Use attention_prefill for more.")
    group = q.shape[1] // pages.kv_heads
    rung = _default_rung(batch.most_rows * group, q.device) if rung is None else rung
    rung = chosen_rung("attention_decode", rung, RUNGS)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if gate is not None and gate.stride(-1) != 1:
        gate = gate.contiguous()
    _launch(rung, aligned(q), pages, batch, scale, gate, lse, out, split_count)
    return out


def macros(head_dim: int, k_bits: int, v_bits: int, queries: int) -> dict[str, int]:
    """How the kernels are compiled: for pages of a head dimension and format, and slices of one of QUERY_CLASSES."""
    return {"HEAD_DIM": head_dim, "K_BITS": k_bits, "V_BITS": v_bits, "QUERIES": queries, "WARPS": WARPS}


def decode_macros(head_dim: int, group: int, bits: tuple[int, int]) -> list[dict[str, int]]:
    """What one row of each sequence runs with, in a model with ``group`` query heads on a KV head, on any GPU."""
    classes = {Slices.of(1, group, most_queries(rung, bits[0])).queries: None for rung in ("4_wide", RUNGS[-1])}
    return [macros(head_dim, *bits, queries) for queries in classes]


def _default_rung(queries: int, device: torch.device) -> str:
    return RUNGS[-1] if queries >= TENSOR_QUERIES and is_v100(device) else "4_wide"


@cache
def _kernel(rung: str, head_dim: int, k_bits: int, v_bits: int, queries: int) -> Kernel:
    return Kernel("attention_decode", rung, "attention_decode", macros(head_dim, k_bits, v_bits, queries))


def _launch(
    rung: str,
    q: Tensor,
    pages: KVPages,
    batch: PagedBatch,
    scale: float,
    gate: Tensor | None,
    lse: Tensor | None,
    out: Tensor,
    split_count: int | None,
) -> None:
    heads, kv_heads = q.shape[1], pages.kv_heads
    slices = Slices.of(batch.most_rows, heads // kv_heads, most_queries(rung, pages.k.bits))
    kernel = _kernel(rung, pages.head_dim, pages.k.bits, pages.v.bits, slices.queries)
    across = slices.count * kv_heads
    if rung == RUNGS[0]:
        grid = -(-heads // WARPS), batch.most_rows, batch.sequences
    else:
        resident = resident_blocks(rung, pages.head_dim, pages.k.bits, slices.queries)
        grid = across, _splits(rung, split_count, batch, across, resident, q.device), batch.sequences
    partials = arrivals = None
    if rung in SPLIT_RUNGS and grid[1] > 1:
        places = batch.sequences * across
        record = record_floats(slices.queries, pages.head_dim)
        partials = torch.empty(places * grid[1] * record, dtype=torch.float32, device=q.device)
        arrivals = arrival_counters(q.device, places * counters(grid[1]))
    strides = [0, 0] if gate is None else list(gate.stride()[:2])
    tensors = [q, *pages.tensors, batch.table, batch.lengths, batch.row_starts, None if gate is None else span(gate)]
    results = [Out(out), None if lse is None else Out(lse), partials, arrivals]
    numbers = [batch.table.shape[1], kv_heads, heads // kv_heads, *strides, scale]
    kernel.launch(grid, WARPS * WARP, [*tensors, *results, *numbers])


def _splits(rung: str, given: int | None, batch: PagedBatch, slices: int, resident: int, device: torch.device) -> int:
    if rung not in SPLIT_RUNGS:
        return 1
    if given is not None:
        return given
    return splits(batch.page_counts, slices, processors(device), resident)


def _check_splits(rung: str | None, split_count: int | None) -> None:
    if split_count is None:
        return
    whole = isinstance(split_count, int) and not isinstance(split_count, bool)
    if not whole or not 1 <= split_count <= MOST_SPLITS:
        message = f"attention_decode: split_count is {split_count!r}."
        raise KernelArgumentError(message, cure=f"Give a whole number from 1 to {MOST_SPLITS}, or None.")
    if split_count > 1 and rung is not None and rung not in SPLIT_RUNGS:
        message = f"attention_decode: split_count is {split_count}; the rung {rung} does not split the context."
        raise KernelArgumentError(message, cure=f"Leave it out, or choose one of {', '.join(SPLIT_RUNGS)}.")

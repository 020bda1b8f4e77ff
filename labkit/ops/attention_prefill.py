"""Attention of many new rows of each sequence over its pages, for prefill: softmax(q k^T scale) v, causal.

    out[r, h] = sum over tokens t of softmax_t(q[r, h] . k[t] scale) v[t]    (times sigmoid(gate[r, h]))

over the tokens that row r sees: with R rows of a sequence of L tokens, its row i sees tokens 0 .. L - R + i. Query head
h reads KV head h // group. Scores are never written down: a block walks the pages of one tile of 64 rows and rescales
its sums as the maximum grows (FlashAttention, Dao et al. 2022, arXiv:2205.14135; the rescaling is softmax_online's).
Codes of INT8 and INT4 keys are multiplied as they are, for halves hold them exactly, and scaled in fp32: scores are as
exact as with fp16 keys. Values and weights are rounded to halves, products and sums are fp32, and the result is rounded
once, twice with a gate.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.attention_checks import LOG2_E, check_attention, check_for_kernels, check_rung, checked_scale
from labkit.ops.attention_prefill_sdpa import attend_with_library, library_is_faster
from labkit.ops.attention_sparse_torch import attend_kept
from labkit.ops.attention_torch import attend
from labkit.ops.checks import WIDEST_LOAD, chosen_rung, span
from labkit.ops.kept_pages import KeptPages
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages

RUNGS = ["1_scalar", "2_tensor_cores", "3_split_d", "4_prefetch"]
THREADS = 128  # of a block
TILE_BYTES = 8192  # in shared memory: 64 elements of 64 rows or tokens, as halves


def attention_prefill(
    q: Tensor,
    pages: KVPages,
    batch: PagedBatch,
    *,
    scale: float | None = None,
    gate: Tensor | None = None,
    lse: Tensor | None = None,
    kept: KeptPages | None = None,
    rung: str | None = None,
) -> Tensor:
    """q: [T, heads, D], rotated where the pages rotate (``pages.rotated``). Returns [T, heads, D] in q's dtype.

    Any number of rows of each sequence; the kernels take fp16 q, fp16, INT8 or INT4 pages, and D of 64, 128 or 256.
    scale: D^-0.5 unless given; above 0. gate: [T, heads, D] in q's dtype, any strides; the result is multiplied by its
    sigmoid. lse: dense fp32 [T, heads], filled with the natural logarithm of each row's sum of exponentials. kept: the
    pages that each tile of 64 rows reads; all unless given. With every page in its lists the result is the same bit for
    bit. rung: of the ladder, or another that lies in its folder; torch has none, but refuses what is no rung.

    Without a rung, ``4_prefetch`` runs on a V100 and on the simulator. GPUs from capability 8.0 on emulate its
    tensor-core instruction; there torch's own attention runs over gathered keys and values, unless ``kept`` or ``lse``
    is given.
    Raises KernelArgumentError for what does not fit.
    """
    check_attention("attention_prefill", q, pages, batch, gate, lse)
    scale = checked_scale("attention_prefill", scale, pages.head_dim)
    check_rung("attention_prefill", rung, RUNGS)
    if kept is not None:
        if not isinstance(kept, KeptPages):
            message = f"attention_prefill: kept is a {type(kept).__name__}."
            raise KernelArgumentError(message, cure="Give KeptPages, as choose_pages makes them.")
        kept.check("attention_prefill", batch, q.shape[1])
    if executor_for(q, pages.k.values) == "torch":
        if kept is not None:
            return attend_kept(q, pages, batch, kept, scale, gate, lse)
        return attend(q, pages, batch, scale, gate, lse)
    check_for_kernels("attention_prefill", q, pages, gate)
    if rung is None and kept is None and lse is None and library_is_faster(q.device):
        return attend_with_library(q, pages, batch, scale, gate)
    rung = chosen_rung("attention_prefill", rung, RUNGS)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _launch(rung, _in_pieces(q), pages, batch, scale, None if gate is None else _in_pieces(gate), lse, kept, out)
    return out


def macros(head_dim: int, k_bits: int, v_bits: int) -> dict[str, int]:
    """How the kernels are compiled: for pages of a head dimension and format."""
    return {"HEAD_DIM": head_dim, "K_BITS": k_bits, "V_BITS": v_bits}


def shared_bytes(rung: str, head_dim: int) -> int:
    """Dynamic shared memory of a block: ``2_tensor_cores`` holds queries, weights, and a whole page of K or of V."""
    tiles = head_dim * 2 // 128
    return (2 * tiles + 1) * TILE_BYTES if rung == "2_tensor_cores" else 0


@cache
def _kernel(rung: str, head_dim: int, k_bits: int, v_bits: int) -> Kernel:
    return Kernel("attention_prefill", rung, "attention_prefill", macros(head_dim, k_bits, v_bits))


def _launch(
    rung: str,
    q: Tensor,
    pages: KVPages,
    batch: PagedBatch,
    scale: float,
    gate: Tensor | None,
    lse: Tensor | None,
    kept: KeptPages | None,
    out: Tensor,
) -> None:
    heads, dim = q.shape[1:]
    gates = [None, 0, 0] if gate is None else [span(gate), *gate.stride()[:2]]
    lists = [None, None, 0] if kept is None else [kept.index.contiguous(), kept.count, kept.index.shape[2]]
    arguments = [
        span(q),
        *q.stride()[:2],
        *pages.tensors,
        pages.kv_heads,
        batch.table,
        batch.table.shape[1],
        batch.lengths,
        batch.row_starts,
        batch.tile_starts,
        batch.sequences,
        *lists,
        scale * LOG2_E,
        *gates,
        Out(out),
        None if lse is None else Out(lse),
    ]
    kernel = _kernel(rung, dim, pages.k.bits, pages.v.bits)
    kernel.launch((heads, batch.tiles), THREADS, arguments, shared_bytes(rung, dim))


def _in_pieces(x: Tensor) -> Tensor:
    """``x``, or a dense copy where its rows cannot be read 16 bytes at a time."""
    elements = WIDEST_LOAD // x.element_size()
    fits = x.stride(-1) == 1 and not any(stride % elements for stride in x.stride()[:2])
    return x if fits and not x.data_ptr() % WIDEST_LOAD else x.clone(memory_format=torch.contiguous_format)

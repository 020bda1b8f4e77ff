"""Layers that both architectures share: embedding and head, SwiGLU, and the pieces of attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.model.config import LinearScaling, Llama3Scaling, RopeConfig
from labkit.model.forward_batch import ForwardBatch
from labkit.ops.attention_decode import attention_decode
from labkit.ops.attention_prefill import attention_prefill
from labkit.ops.linear import FusedLinear, Linear
from labkit.ops.paged_kv import KVPages
from labkit.ops.rmsnorm import add_rmsnorm, rmsnorm
from labkit.ops.rope import inverse_frequencies, llama3_frequencies, rope_table
from labkit.ops.silu_mul import silu_mul
from labkit.ops.sparse_prefill import applies, choose_pages


class RMSNorm:
    """rmsnorm with its weight: fp32 [D], already plain (1 + w where the file stores it zero-centred)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return rmsnorm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """x += residual, in place; returns the norm of the sum."""
        return add_rmsnorm(x, residual, self.weight, self.eps)


class Projection:
    """Several projections of the same input, as one matrix where their formats allow it.

    parts: linear layers whose outputs, side by side, are the result [M, sum N].
    """

    def __init__(self, parts: list[Linear]) -> None:
        self.parts = parts

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0](x)
        return torch.cat([part(x) for part in self.parts], dim=-1)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the projection [M, N]; where a kernel adds it to its fp32 sum, with one rounding less."""
        only = self.parts[0]
        if len(self.parts) == 1 and isinstance(only, FusedLinear):
            return only.plus(x, residual)
        return residual + self(x)

    def silu_mul(self, x: Tensor) -> Tensor:
        """silu(gate) * up of the projection [gate | up]; a kernel that has both sums rounds only their product."""
        only = self.parts[0]
        if len(self.parts) == 1 and isinstance(only, FusedLinear):
            return only.silu_mul(x)
        return silu_mul(self(x))


class SwiGLU:
    """The MLP with its residual: x + down(silu(gate h) * (up h)), h being the norm of x."""

    def __init__(self, gate_up: Projection, down: Projection) -> None:
        self.gate_up, self.down = gate_up, down

    def __call__(self, normed: Tensor, x: Tensor) -> Tensor:
        return self.down.plus(self.gate_up.silu_mul(normed), x)


class Embedding:
    """Token embeddings: a table [V, D], read in the model dtype."""

    def __init__(self, table: Tensor, dtype: torch.dtype) -> None:
        self.table, self.dtype = table, dtype

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self.table).to(self.dtype)


class Rope:
    """Rotary tables for the positions of a step, which lie on ``device``."""

    def __init__(self, config: RopeConfig, device: torch.device | str = "cpu") -> None:
        freqs = inverse_frequencies(config.theta, config.rotary_dim)
        match config.scaling:
            case LinearScaling(factor):
                freqs = freqs / factor
            case Llama3Scaling(factor, low, high, original):
                freqs = llama3_frequencies(freqs, factor, low, high, original)
        self.freqs = freqs.to(device)  # made on the host: the same bits everywhere

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rope_table(self.freqs, positions)


def paged_attention(q: Tensor, pages: KVPages, batch: ForwardBatch, gate: Tensor | None = None) -> Tensor:
    """Attend with q [T, heads, D], as ``qk_norm_rope_kv`` gives it, to pages that hold K and V of this step already.

    gate: [T, heads, D]; the result is multiplied by its sigmoid. Returns [T, heads, D].
    """
    decodes = batch.num_decodes
    outputs = []
    if decodes:
        gates = None if gate is None else gate[:decodes]
        outputs.append(attention_decode(q[:decodes], pages, batch.decoding, gate=gates))
    if decodes < len(batch.chunks):
        gates = None if gate is None else gate[decodes:]
        outputs.append(_prefill(q[decodes:], pages, batch, gates))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _prefill(q: Tensor, pages: KVPages, batch: ForwardBatch, gate: Tensor | None) -> Tensor:
    """Attention of the prefills: to every page, or to those that sparse prefill keeps."""
    paged, sparse, which = batch.prefilling, batch.sparse, batch.sparse_prefills
    kept = None
    if sparse is not None and applies(paged, sparse, which):
        kept = choose_pages(q, pages, paged, sparse, which=which)
    return attention_prefill(q, pages, paged, gate=gate, kept=kept)

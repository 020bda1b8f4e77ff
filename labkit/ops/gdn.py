"""Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464): causal convolution, gates, and the gated delta rule.

Per value head, with state S [dk, dv] in fp32:
    S <- exp(g_t) S;   d = beta_t (v_t - S^T k_t);   S <- S + k_t d^T;   o_t = S^T q_t
that is: decay first, read for the delta after the decay, output after the update.
Decode uses this recurrence; prefill the chunked form, which turns 64 steps into matrix products.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.ops.layout import CHUNK


def causal_conv(u: Tensor, history: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution over time, then SiLU.

    u: [T, C] projections before the convolution; history: [W - 1, C] the inputs before them (zeros at the start);
    weight: fp32 [C, W]. Returns (silu(conv) fp32 [T, C], the last W - 1 inputs [W - 1, C]).
    """
    width = weight.shape[1]
    inputs = torch.cat((history, u))
    taps = (inputs[j : j + u.shape[0]].float() * weight[:, j] for j in range(width))
    out = sum(taps, start=torch.zeros(()))
    return F.silu(out), inputs[-(width - 1) :]


def causal_conv_step(u: Tensor, history: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """One time step of a batch: u [B, C], history [B, W - 1, C] -> (fp32 [B, C], new history [B, W - 1, C])."""
    inputs = torch.cat((history, u[:, None]), dim=1)
    out = torch.einsum("bwc,cw->bc", inputs.float(), weight)
    return F.silu(out), inputs[:, 1:]


def gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Log decay g = -exp(A_log) softplus(a + dt_bias) <= 0 and write strength beta = sigmoid(b), in fp32.

    a, b: [T, Hv]; a_log, dt_bias: fp32 [Hv]. exp(A_log) may exceed the fp16 range: it never leaves fp32.
    """
    return -a_log.exp() * F.softplus(a.float() + dt_bias), b.float().sigmoid()


def split_heads(qkv: Tensor, key_heads: int, value_heads: int, key_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Channels [T, q | k | v], as ``gdn_conv`` gives them -> q, k [T, Hv, dk] (repeated per value head), v [T, Hv, dv].

    Value head j reads with key head j // (Hv / Hk).
    """
    keys = key_heads * key_dim
    q, k, v = qkv.split((keys, keys, qkv.shape[1] - 2 * keys), dim=1)
    repeat = value_heads // key_heads
    q, k = (x.unflatten(1, (key_heads, key_dim)).repeat_interleave(repeat, dim=1) for x in (q, k))
    return q, k, v.unflatten(1, (value_heads, -1))


def gdn_decode(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the recurrence for a batch.

    q, k: fp32 [B, Hv, dk]; v: fp32 [B, Hv, dv]; g, beta: fp32 [B, Hv]; state: fp32 [B, Hv, dk, dv].
    Returns (o [B, Hv, dv], new state).
    """
    state = state * g.exp()[..., None, None]
    delta = beta[..., None] * (v - (k[..., None, :] @ state).squeeze(-2))
    state = torch.addcmul(state, k[..., :, None], delta[..., None, :])
    return (q[..., None, :] @ state).squeeze(-2), state


def gdn_prefill(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, start: int
) -> tuple[Tensor, Tensor]:
    """A run of T tokens of one sequence from absolute position ``start``, in chunks of 64.

    q, k: fp32 [T, Hv, dk]; v: fp32 [T, Hv, dv]; g, beta: fp32 [T, Hv]; state: fp32 [Hv, dk, dv].
    Returns (o [T, Hv, dv], new state). Chunks lie on absolute multiples of 64, whatever ``start`` is:
    the padding before and after has q = k = v = beta = g = 0, which leaves the state as it is.
    """
    tokens, lead = q.shape[0], start % CHUNK
    chunks = -(-(lead + tokens) // CHUNK)
    q, k, v, g, beta = (_chunked(x, lead, chunks) for x in (q, k, v, g, beta))
    outputs = torch.empty_like(v)
    within = _within_chunks(q, k, v, g, beta)
    for i in range(chunks):
        outputs[i], state = _one_chunk(q[i], k[i], state, *(x[i] for x in within))
    return outputs.transpose(1, 2).flatten(0, 1)[lead : lead + tokens], state


def _chunked(x: Tensor, lead: int, chunks: int) -> Tensor:
    """[T, Hv, ...] -> [chunks, Hv, 64, ...], zeros before and after."""
    padded = x.new_zeros(chunks * CHUNK, *x.shape[1:])
    padded[lead : lead + x.shape[0]] = x
    return padded.view(chunks, CHUNK, *x.shape[1:]).transpose(1, 2)


def _within_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """All that does not depend on the incoming state, for all chunks at once.

    With G_i the running sum of g: A_ij = beta_i (k_i . k_j) exp(G_i - G_j) for i > j and T = (I + A)^-1;
    returns U = T (beta V), W = T (beta exp(G) K), the scores tril(Q K^T exp(G_i - G_j)), and G.
    Every exponent that survives the masks is <= 0: nothing can overflow.
    """
    total = g.double().cumsum(-1)  # in fp32 the differences of large sums would lose their last digits
    decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril().float()
    a = (beta[..., None] * (k @ k.mT) * decay).tril(-1)
    rhs = torch.cat((beta[..., None] * v, (beta * total.exp().float())[..., None] * k), dim=-1)
    solved = torch.linalg.solve_triangular(a, rhs, upper=False, unitriangular=True)
    u, w = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    return u, w, q @ k.mT * decay, total


def _one_chunk(
    q: Tensor, k: Tensor, state: Tensor, u: Tensor, w: Tensor, scores: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """Carry the state through one chunk: [Hv, 64, d] operands, state [Hv, dk, dv]."""
    new_v = u - w @ state
    out = (q * total.exp().float()[..., None]) @ state + scores @ new_v
    last = total[..., -1:]
    carried = k * (last - total).exp().float()[..., None]
    return out, state * last.exp().float()[..., None] + carried.mT @ new_v

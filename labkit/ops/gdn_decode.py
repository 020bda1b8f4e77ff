"""One step of Gated DeltaNet for every sequence: gates, delta rule and gated norm as one operation.

Per value head, with its state S [dk, dv] in fp32 and the key head j // (Hv / Hk) of value head j:

    g = -exp(a_log) softplus(a + dt_bias)        beta = sigmoid(b)
    S <- exp(g) S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q
    out = norm_weight (o / sqrt(mean(o^2) + eps)) silu(z)

Source: Yang et al. 2024, arXiv:2412.06464; the gated norm as in Qwen3.5. A step must read and write every state once,
8 dk dv bytes a head, beside which all else is small. Everything but the result is fp32.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops import gated_rmsnorm, gdn
from labkit.ops.checks import WIDEST_LOAD, Tensors, aligned, check_tensor, chosen_rung, named_sizes, number, span
from labkit.ops.layout import GDN_DIMS
from labkit.ops.state_batch import StateBatch

OP = "gdn_decode"
RUNGS = ["1_naive", "2_one_pass", "3_wide"]
THREADS = 256  # of a block, as the sources say; the first rung has one for each column


def gdn_decode(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    state: Tensor,
    batch: StateBatch,
    key_heads: int,
    *,
    rung: str | None = None,
) -> Tensor:
    """One row of each sequence; returns [B, Hv dv] in z's dtype, and changes ``state`` in place.

    qkv: [B, q | k | v], as ``gdn_conv`` gives it: Hk heads of q and of k, normalised, q scaled, and Hv of v.
    z: [B, Hv dv]; b, a: [B, Hv]; views with any distance between rows. a_log, dt_bias: fp32 [Hv]; norm_weight: fp32
    [dv]. state: fp32 [slots, Hv, dk, dv], of which those of ``batch`` change; what lies in the slot of a sequence at
    position 0 counts as zero. The kernels take fp16, dense states, and dk and dv of 64 or 128.
    Raises KernelArgumentError for what does not fit.
    """
    kernels = executor_for(qkv, z, state) != "torch"
    heads = _check(qkv, z, b, a, a_log, dt_bias, norm_weight, state, batch, key_heads, kernels)
    epsilon = number(OP, "eps", eps)
    if not kernels:
        return reference(qkv, z, b, a, a_log, dt_bias, norm_weight, epsilon, state, batch, heads)
    _check_for_kernels(state)
    rung = chosen_rung(OP, rung, RUNGS)
    value_heads, key_dim, value_dim = state.shape[1:]
    out = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    z, b, a = (x if x.stride(-1) == 1 else x.contiguous() for x in (z, b, a))
    weights = [x.contiguous() for x in (a_log, dt_bias, norm_weight)]
    tensors = [aligned(qkv), span(z), span(b), span(a), *weights, batch.slots, batch.starts, state, Out(out)]
    strides = [x.stride(0) if batch.rows > 1 else 0 for x in (z, b, a)]
    threads = value_dim if rung == RUNGS[0] else THREADS
    grid = value_heads, batch.rows
    _kernel(rung, key_dim, value_dim).launch(grid, threads, [*tensors, heads, value_heads // heads, *strides, epsilon])
    return out


def reference(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    state: Tensor,
    batch: StateBatch,
    key_heads: int,
) -> Tensor:
    """The definition in torch, for all sequences at once: fp32 inside."""
    q, k, v = gdn.split_heads(qkv.float(), key_heads, *state.shape[1:3])
    g, beta = gdn.gates(a, b, a_log, dt_bias)
    fresh = (batch.starts == 0)[:, None, None, None]
    old = state[batch.slots].masked_fill(fresh, 0)
    out, state[batch.slots] = gdn.gdn_decode(q, k, v, g, beta, old)
    return gated_rmsnorm.reference(out, z, norm_weight, eps)


def macros(key_dim: int, value_dim: int) -> dict[str, int]:
    """How the kernels are compiled. Raises KernelArgumentError for heads that they are not built for."""
    for dim in (key_dim, value_dim):
        if dim not in GDN_DIMS:
            built = " and ".join(map(str, GDN_DIMS))
            message = f"{OP}: heads of {dim} elements; kernels are built for {built}."
            raise KernelArgumentError(message, cure="Others run on the executor torch.")
    return {"KEY_DIM": key_dim, "VALUE_DIM": value_dim}


@cache
def _kernel(rung: str, key_dim: int, value_dim: int) -> Kernel:
    return Kernel(OP, rung, OP, macros(key_dim, value_dim))


def _check(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    state: Tensor,
    batch: StateBatch,
    key_heads: Any,
    kernels: bool,
) -> int:
    """The number of key heads, after a look at every argument."""
    activations = {"qkv": qkv, "z": z, "b": b, "a": a}
    for name, x in {"state": state, **activations}.items():
        check_tensor(OP, name, x)
    sizes = named_sizes(OP, {"state": (state, torch.float32, ("slots", "Hv", "dk", "dv"))})
    heads, key_dim, value_dim = (sizes[name] for name in ("Hv", "dk", "dv"))
    shared = _key_heads(key_heads, heads)
    widths = {"qkv": 2 * shared * key_dim + heads * value_dim, "z": heads * value_dim, "b": heads, "a": heads}
    if not isinstance(batch, StateBatch):
        raise KernelArgumentError(f"{OP}: batch is a {type(batch).__name__}.", cure="Make one with StateBatch.of.")
    if batch.most_rows > 1:
        message = f"{OP}: a sequence has {batch.most_rows} rows; a step takes one of each."
        raise KernelArgumentError(message, cure="Give several rows of a sequence to gdn_prefill.")
    batch.check(OP, sizes["slots"])
    named: Tensors = {
        name: (x, torch.float16 if kernels else x.dtype, (batch.rows, widths[name])) for name, x in activations.items()
    }
    vectors = {"a_log": (a_log, heads), "dt_bias": (dt_bias, heads), "norm_weight": (norm_weight, value_dim)}
    named_sizes(OP, named | {name: (x, torch.float32, (size,)) for name, (x, size) in vectors.items()})
    return shared


def _key_heads(given: Any, heads: int) -> int:
    try:
        key_heads = operator.index(given)
    except TypeError:
        message = f"{OP}: key_heads is a {type(given).__name__}."
        raise KernelArgumentError(message, cure="Give a whole number.") from None
    if key_heads < 1 or not heads or heads % key_heads:
        message = f"{OP}: {heads} value heads and {key_heads} key heads."
        raise KernelArgumentError(message, cure="As many value heads, one or more, must read with each key head.")
    return key_heads


def _check_for_kernels(state: Tensor) -> None:
    """Raises KernelArgumentError for states that are not built, or not where the kernels could change them."""
    macros(*state.shape[2:])
    if not state.is_contiguous() or state.data_ptr() % WIDEST_LOAD:
        problem = f"has strides {list(state.stride())} and starts at address {state.data_ptr():#x}"
        cure = f"It changes in place: make it dense, from a multiple of {WIDEST_LOAD} bytes on."
        raise KernelArgumentError(f"{OP}: state {problem}.", cure=cure)

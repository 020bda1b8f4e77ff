"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), rotate-half form, on the first dimensions of a head.

Pairs (j, j + R/2) turn by position * theta^(-2j/R); dimensions from R on pass through. Angles are made in fp32.
Qwen3.5's multi-axis positions reduce to this for text, where all three axes are the token index.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import chosen_rung, named_sizes, span, vector_width

RUNGS = ["1_naive", "2_pairs", "3_vector"]
WIDEST = {"1_naive": 1, "2_pairs": 1, "3_vector": 8}  # pairs of a thread
THREADS = 128


def inverse_frequencies(theta: float, rotary_dim: int) -> Tensor:
    """theta^(-2j/R) for j < R/2: fp32 [R/2]."""
    return 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def llama3_frequencies(freqs: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Llama 3.1's rescaling: wavelengths over original/low divided by factor, under original/high kept, a ramp between.

    freqs: fp32 [R/2]. Returns fp32 [R/2].
    """
    turns = original * freqs / (2 * math.pi)  # full rotations within the original context
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return freqs * (keep + (1 - keep) / factor)


def rope_table(freqs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of every position and frequency: fp32 [T, 1, R] each (1 stands for the heads).

    Both halves of the first are cos; the second is -sin for the first half and sin for the other, so that
    ``apply_rope`` needs no sign.
    """
    angles = (positions.float()[:, None] * freqs[None, :])[:, None, :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, *, rung: str | None = None) -> Tensor:
    """Rotate the first R dimensions of ``x`` [T, heads, D] by a ``rope_table`` [T, 1, R]. Returns x's dtype.

    The kernels take fp16 and any distance between tokens. Raises KernelArgumentError for what they do not take.
    """
    if executor_for(x) == "torch":
        return reference(x, cos, sin)
    [turned] = _launch([x], cos, sin, rung)
    return turned


def apply_rope_qk(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, rung: str | None = None) -> tuple[Tensor, Tensor]:
    """``apply_rope`` for queries [T, heads, D] and keys [T, kv_heads, D], in one launch."""
    if executor_for(q, k) == "torch":
        return reference(q, cos, sin), reference(k, cos, sin)
    turned_q, turned_k = _launch([q, k], cos, sin, rung)
    return turned_q, turned_k


def reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The definition in torch: fp32 inside."""
    rotary_dim = cos.shape[-1]
    rotated, passed = x[..., :rotary_dim].float(), x[..., rotary_dim:]
    partner = rotated.roll(rotary_dim // 2, dims=-1)
    rotated = torch.addcmul(rotated * cos, partner, sin).to(x.dtype)
    return torch.cat((rotated, passed), dim=-1) if passed.shape[-1] else rotated


def macros(head_dim: int, rotary_dim: int, q_heads: int, k_heads: int, vec: int = 0) -> dict[str, int]:
    """How the kernels are compiled; k_heads 0: one tensor. vec 0: the widest loads that the sizes allow."""
    vec = vec or vector_width(8, [head_dim, rotary_dim // 2], [])
    heads = {"Q_HEADS": q_heads, "K_HEADS": k_heads}
    return {"HEAD_DIM": head_dim, "ROTARY_DIM": rotary_dim, **heads, "THREADS": THREADS, "VEC": vec}


def _launch(tensors: list[Tensor], cos: Tensor, sin: Tensor, rung: str | None) -> list[Tensor]:
    """Rotate one tensor, or queries and keys: some consecutive blocks per token."""
    rung = chosen_rung("rope", rung, RUNGS)
    tokens, dim, rotary_dim, heads = _sizes(tensors, cos, sin)
    if not all(x.numel() for x in tensors):  # a kernel is not compiled for no heads
        return [_launch([x], cos, sin, rung)[0] if x.numel() else torch.empty_like(x) for x in tensors]
    tensors = [x if x.stride()[1:] == (dim, 1) else x.contiguous() for x in tensors]
    turned = [x.new_empty(x.shape) for x in tensors]
    vec = vector_width(8, [dim, rotary_dim // 2, *(x.stride(0) for x in tensors)], [*tensors, cos, sin, *turned])
    work = sum(heads) * (dim if rung == "1_naive" else (dim - rotary_dim // 2) // min(vec, WIDEST.get(rung, 1)))
    inputs, outputs = [*map(span, tensors), None][:2], [*map(Out, turned), None][:2]
    arguments = [*inputs, cos, sin, *outputs, tensors[0].stride(0), tensors[-1].stride(0)]
    kernel = _kernel(rung, dim, rotary_dim, *heads, vec)
    kernel.launch(tokens * -(-work // THREADS), THREADS, arguments)
    return turned


@cache
def _kernel(rung: str, head_dim: int, rotary_dim: int, q_heads: int, k_heads: int, vec: int) -> Kernel:
    return Kernel("rope", rung, "rope", macros(head_dim, rotary_dim, q_heads, k_heads, vec))


def _sizes(tensors: list[Tensor], cos: Tensor, sin: Tensor) -> tuple[int, int, int, tuple[int, int]]:
    """Tokens, D, R and the heads of both tensors (0 for the second if there is one alone), checked."""
    half, single = torch.float16, torch.float32
    named = {name: (x, half, ("tokens", f"{name} heads", "D")) for name, x in zip("qk", tensors, strict=False)}
    tables = {name: (x, single, ("tokens", 1, "R")) for name, x in (("cos", cos), ("sin", sin))}
    sizes = named_sizes("rope", {**named, **tables})
    dim, rotary_dim = sizes["D"], sizes["R"]
    if rotary_dim > dim or rotary_dim % 2:
        raise KernelArgumentError(f"rope: {rotary_dim} of {dim} dimensions.", cure="Rotate an even part of a head.")
    return sizes["tokens"], dim, rotary_dim, (sizes["q heads"], sizes.get("k heads", 0))

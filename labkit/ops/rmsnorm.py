"""RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467).

y = x / sqrt(mean(x^2) + eps) * w, all in fp32, cast at the end. Qwen3.5 stores its weights zero-centred
(y uses 1 + w): the loader adds the one once, so that the model multiplies by plain weights; ``zero_centered`` takes
them as they are in the file. ``add_rmsnorm`` joins the norm with the residual addition before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import (
    MOST_THREADS,
    block_size,
    check_tensor,
    chosen_rung,
    dense_rows,
    named_sizes,
    number,
    vector_width,
)

RUNGS = ["1_naive", "2_shuffle", "3_vector"]
MOST_ELEMENTS = 32 * MOST_THREADS  # of a row: a thread of the last rung keeps at most 32


def rmsnorm(x: Tensor, weight: Tensor, eps: float, *, zero_centered: bool = False, rung: str | None = None) -> Tensor:
    """Normalise the last dimension of ``x`` [..., D] by ``weight`` [D] (fp32); returns x's dtype.

    The kernels take fp16; an x whose rows do not lie one after the other is copied first.
    Raises KernelArgumentError for shapes and dtypes that they do not take.
    """
    if executor_for(x) == "torch":
        return reference(x, weight, eps, zero_centered=zero_centered)
    return _launch("rmsnorm", [dense_rows("rmsnorm", "x", x), weight], eps, zero_centered, rung).view(x.shape)


def add_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, zero_centered: bool = False, rung: str | None = None
) -> Tensor:
    """x += residual, in place and rounded to x's dtype; returns rmsnorm(x). Both are dense [..., D].

    As one operation it reads and writes the sum once where two would go over it twice.
    Raises KernelArgumentError for shapes, dtypes and layouts that the kernels do not take.
    """
    if executor_for(x, residual) == "torch":
        return add_reference(x, residual, weight, eps, zero_centered=zero_centered)
    added = dense_rows("add_rmsnorm", "residual", residual)
    check_tensor("add_rmsnorm", "x", x)
    if x.shape != residual.shape or not x.is_contiguous():
        raise KernelArgumentError(
            f"add_rmsnorm: x is {list(x.shape)} (strides {list(x.stride())}), residual {list(residual.shape)}.",
            cure="Both need the same shape, and x, which changes in place, dense rows.",
        )
    rows = x.view(added.shape)
    named_sizes("add_rmsnorm", {"residual": (added, torch.float16, ("rows", "hidden"))})
    return _launch("add_rmsnorm", [rows, added, weight], eps, zero_centered, rung).view(x.shape)


def reference(x: Tensor, weight: Tensor, eps: float, *, zero_centered: bool = False) -> Tensor:
    """The definition in torch: fp32 inside."""
    gain = 1 + weight if zero_centered else weight
    return F.rms_norm(x.float(), weight.shape, gain, eps).to(x.dtype)


def add_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, zero_centered: bool = False) -> Tensor:
    """The definition in torch: the norm is that of the sum as stored."""
    x += residual
    return reference(x, weight, eps, zero_centered=zero_centered)


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension, in fp32 (queries and keys of Gated DeltaNet)."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def macros(hidden: int, vec: int = 0, zero_centered: bool = False) -> dict[str, int]:
    """How the kernels are compiled for rows of ``hidden`` elements; vec 0: the widest loads that the length allows."""
    vec = vec or vector_width(8, [hidden], [])
    threads = max(block_size(hidden // vec), block_size(-(-hidden // 32), MOST_THREADS))
    return {"HIDDEN": hidden, "THREADS": threads, "VEC": vec, "ZERO_CENTERED": int(bool(zero_centered))}


@cache
def _kernel(rung: str, entry: str, hidden: int, vec: int, zero_centered: bool) -> tuple[Kernel, int]:
    """The kernel and the threads of its blocks."""
    made = macros(hidden, vec, zero_centered)
    return Kernel("rmsnorm", rung, entry, made), made["THREADS"]


def _launch(entry: str, tensors: Sequence[Tensor], eps: float, zero_centered: bool, rung: str | None) -> Tensor:
    """One block per row. tensors: x, for ``add_rmsnorm`` the residual, and the weight."""
    rung, epsilon = chosen_rung(entry, rung, RUNGS), number(entry, "eps", eps)
    rows, weight = tensors[0], tensors[-1]
    sizes = named_sizes(
        entry, {"x": (rows, torch.float16, ("rows", "hidden")), "weight": (weight, torch.float32, ("hidden",))}
    )
    count, hidden = sizes["rows"], sizes["hidden"]
    if hidden > MOST_ELEMENTS:
        raise KernelArgumentError(
            f"{entry}: a row of {hidden} elements.", cure=f"The kernels take rows of up to {MOST_ELEMENTS} elements."
        )
    y = torch.empty_like(rows)
    if count and hidden:
        vec = vector_width(8, [hidden], [*tensors, y])
        kernel, threads = _kernel(rung, entry, hidden, vec, bool(zero_centered))
        kernel.launch(count, threads, [*tensors, Out(y), epsilon])
    return y

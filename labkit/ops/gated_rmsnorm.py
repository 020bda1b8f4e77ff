"""The output norm of Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464): RMSNorm of every head, then a gate.

    y = weight * x / sqrt(mean(x^2) + eps) * silu(gate)      silu(g) = g / (1 + exp(-g))

The weight is used as it is in the file: Qwen3.5's other norms are zero-centred, this one is not.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import WARP, aligned, check_tensor, chosen_rung, named_sizes, number, span, vector_width
from labkit.ops.layout import GDN_DIMS

OP = "gated_rmsnorm"
RUNGS = ["1_naive", "2_vector"]
THREADS = 128
WARPS = THREADS // WARP


def gated_rmsnorm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, rung: str | None = None) -> Tensor:
    """x: fp32 [T, heads, D]; gate: [T, heads D], whose rows may lie apart; weight: fp32 [D].

    Returns [T, heads D], dense, in gate's dtype; fp32 inside. The kernels take fp16 gates and heads of 64 or 128; an x
    that is not dense is copied first. Raises KernelArgumentError for what they do not take.
    """
    kernels = executor_for(x, gate, weight) != "torch"
    rows, heads, dim = _sizes(x, gate, weight, kernels)
    epsilon = number(OP, "eps", eps)
    if not kernels:
        return reference(x, gate, weight, epsilon)
    rung = chosen_rung(OP, rung, RUNGS)
    made = macros(dim)
    gate = gate if gate.stride(1) == 1 else gate.contiguous()
    stride = gate.stride(0) if rows > 1 else 0
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if y.numel():
        kernel = _kernel(rung, dim, vector_width(made["VEC"], [stride], [gate]))
        blocks, threads = (heads, dim) if rung == "1_naive" else (-(-heads // WARPS), THREADS)
        arguments = [aligned(x), span(gate), aligned(weight), Out(y), heads, stride, epsilon]
        kernel.launch((rows, blocks), threads, arguments)
    return y


def reference(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The definition in torch."""
    normed = F.rms_norm(x, weight.shape, weight, eps).flatten(1)
    return (normed * F.silu(gate.float())).to(gate.dtype)


def macros(dim: int, vec: int = 0) -> dict[str, int]:
    """How the kernels are compiled for any number of heads; vec 0: the widest loads.

    Raises KernelArgumentError for heads that the kernels are not built for.
    """
    if dim not in GDN_DIMS:
        cure = f"Its kernels are built for heads of {', '.join(map(str, GDN_DIMS))}; others run on the executor torch."
        raise KernelArgumentError(f"{OP}: heads of {dim} elements.", cure=cure)
    return {"DIM": dim, "THREADS": THREADS, "VEC": vec or dim // WARP}


@cache
def _kernel(rung: str, dim: int, vec: int) -> Kernel:
    return Kernel(OP, rung, OP, macros(dim, vec))


def _sizes(x: Tensor, gate: Tensor, weight: Tensor, kernels: bool) -> tuple[int, int, int]:
    """Rows, heads, D. Raises KernelArgumentError."""
    check_tensor(OP, "gate", gate)
    sizes = named_sizes(
        OP, {"x": (x, torch.float32, ("rows", "heads", "D")), "weight": (weight, torch.float32, ("D",))}
    )
    rows, heads, dim = (sizes[name] for name in ("rows", "heads", "D"))
    dtype = torch.float16 if kernels else gate.dtype
    named_sizes(OP, {"gate": (gate, dtype, (rows, heads * dim))})
    return rows, heads, dim

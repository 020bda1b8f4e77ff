"""SwiGLU's elementwise half (Shazeer 2020, arXiv:2002.05202): silu(gate) * up, with silu(g) = g / (1 + exp(-g))."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import chosen_rung, dense_rows, named_sizes, vector_width

RUNGS = ["1_naive", "2_half2", "3_vector"]
WIDEST = {"1_naive": 1, "2_half2": 2, "3_vector": 8}  # elements of a thread
THREADS = 256


def silu_mul(gate_up: Tensor, *, rung: str | None = None) -> Tensor:
    """gate_up: [..., 2 I], gate first. Returns silu(gate) * up: [..., I], in the same dtype.

    The kernels take fp16, compute in fp32 and round once; rows that do not lie one after the other are copied first.
    Raises KernelArgumentError for what they do not take.
    """
    if executor_for(gate_up) == "torch":
        return reference(gate_up)
    rung = chosen_rung("silu_mul", rung, RUNGS)
    rows = dense_rows("silu_mul", "gate_up", gate_up)
    sizes = named_sizes("silu_mul", {"gate_up": (rows, torch.float16, ("rows", "2 I"))})
    if sizes["2 I"] % 2:
        raise KernelArgumentError(f"silu_mul: gate_up has rows of {sizes['2 I']} elements.", cure="Give [gate | up].")
    inner = sizes["2 I"] // 2
    y = rows.new_empty(sizes["rows"], inner)
    if y.numel():
        vec = vector_width(8, [inner], [rows, y])
        work = inner // min(vec, WIDEST.get(rung, 1))
        _kernel(rung, inner, vec).launch(sizes["rows"] * -(-work // THREADS), THREADS, [rows, Out(y)])
    return y.view(*gate_up.shape[:-1], inner)


def reference(gate_up: Tensor) -> Tensor:
    """The definition in torch, in the tensor's own dtype."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def macros(inner: int, vec: int = 0) -> dict[str, int]:
    """How the kernels are compiled for ``inner`` outputs a row; vec 0: the widest loads that the length allows."""
    return {"INNER": inner, "THREADS": THREADS, "VEC": vec or vector_width(8, [inner], [])}


@cache
def _kernel(rung: str, inner: int, vec: int) -> Kernel:
    return Kernel("silu_mul", rung, "silu_mul", macros(inner, vec))

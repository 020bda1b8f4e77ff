"""Softmax over long rows: y = exp(scale x - m) / sum(exp(scale x - m)) with m = max(scale x).

In one pass over the row when the sum is rescaled as the maximum grows (Milakov & Gimelshein 2018, arXiv:1805.02867):
the step that attention kernels are built on. scale: 1 / temperature, or 1 / sqrt(D) for scores.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.ops.checks import block_size, chosen_rung, dense_rows, named_sizes, number, vector_width

RUNGS = ["1_three_passes", "2_online", "3_vector"]
MOST_THREADS = 512


def softmax(x: Tensor, scale: float = 1.0, *, rung: str | None = None) -> Tensor:
    """Softmax of scale * x over the last dimension: fp32 [..., N] -> fp32 [..., N].

    Elements may be -inf (masked: 0); a row of nothing else is NaN. Rows that do not lie one after the other are copied
    first. Raises KernelArgumentError for another dtype, and for a tensor without dimensions.
    """
    if executor_for(x) == "torch":
        return reference(x, scale)
    rung, factor = chosen_rung("softmax", rung, RUNGS), number("softmax", "scale", scale)
    rows = dense_rows("softmax", "x", x)
    sizes = named_sizes("softmax", {"x": (rows, torch.float32, ("rows", "columns"))})
    columns = sizes["columns"]
    y = torch.empty_like(rows)
    if y.numel():
        kernel, threads = _kernel(rung, columns, vector_width(4, [columns], [rows, y]))
        kernel.launch(sizes["rows"], threads, [rows, Out(y), columns, factor])
    return y.view(x.shape)


def reference(x: Tensor, scale: float = 1.0) -> Tensor:
    """The definition in torch."""
    return torch.softmax(x * scale, dim=-1)


def macros(columns: int, vec: int = 0) -> dict[str, int]:
    """How the kernels are compiled for rows of ``columns`` elements (which they learn when they run)."""
    vec = vec or vector_width(4, [columns], [])
    return {"THREADS": block_size(columns // vec, MOST_THREADS), "VEC": vec}


@cache
def _kernel(rung: str, columns: int, vec: int) -> tuple[Kernel, int]:
    """The kernel and the threads of its blocks."""
    made = macros(columns, vec)
    return Kernel("softmax_online", rung, "softmax_online", made), made["THREADS"]

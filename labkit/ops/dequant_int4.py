"""INT4 weights back to fp16, and the product with a weight that is dequantized for it.

    w = (q - z) s   or   w = q s + b,   rounded to half once

The difference is exact in half, so these are, bit for bit, the weights by which the fused kernels multiply. With many
rows of activations it pays to dequantize a weight once and let the library multiply (published for a V100: 76.4
TFLOP/s, against 51.5 of a fused kernel): ``dequant_matmul``.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import WARP, WIDEST_LOAD, chosen_rung, named_sizes
from labkit.ops.half_matmul import half_matmul
from labkit.ops.weight_checks import check_packed
from labkit.ops.workspace import HalfWorkspace
from labkit.quant.int4 import Form
from labkit.quant.pack import TILE, PackedInt4, unpack

RUNGS = ["1_naive", "2_words", "3_full_sectors"]
THREADS = 256


def dequant_int4(
    weight: PackedInt4, *, tiles: slice | None = None, out: Tensor | None = None, rung: str | None = None
) -> Tensor:
    """The weight as fp16 [rows, K], row-major.

    tiles: those of its tiles of 32 outputs that are wanted, a plain range; None: all. Rows that only fill the last tile
    are left out. out: dense fp16 [rows, K] to write to, which is then returned.
    Raises KernelArgumentError for another range, and for an out that does not fit or starts at an odd address.
    """
    check_packed("dequant_int4", weight)
    first, last = _tile_range(weight, tiles)
    rows, inputs = min(weight.outputs, last * TILE) - first * TILE, weight.shape[1]
    part = PackedInt4(weight.data[first:last], rows, weight.group_size, weight.form)
    w = torch.empty(rows, inputs, dtype=torch.float16, device=weight.device) if out is None else out
    named_sizes("dequant_int4", {"out": (w, torch.float16, (rows, inputs))})
    if executor_for(weight.data, w) == "torch":
        return w.copy_(reference(part))
    rung = chosen_rung("dequant_int4", rung, RUNGS)
    if not w.is_contiguous() or w.data_ptr() % WIDEST_LOAD:
        message = f"dequant_int4: out is not dense, or does not start at a multiple of {WIDEST_LOAD} bytes."
        raise KernelArgumentError(message, cure="Call .clone() on it.")
    kernel = _kernel(rung, weight.group_size, weight.form)
    kernel.launch(_blocks(rung, part), THREADS, [part.data, Out(w), rows, inputs])
    return w


def reference(weight: PackedInt4) -> Tensor:
    """The definition in torch: fp16 [N, K], each weight rounded once."""
    plain = unpack(weight)
    scale, other = plain.groups.double().split(1, dim=-1)
    q = plain.unpack().view(*plain.groups.shape[:2], weight.group_size).double()
    exact = (q - other) * scale if weight.form == "scale_zero" else q * scale + other
    return _half_from_double(exact).view(weight.shape)


def dequant_matmul(x: Tensor, weight: PackedInt4, workspace: HalfWorkspace, *, rung: str | None = None) -> Tensor:
    """x [M, K] fp16 times the transposed weight: fp16 [M, N], with fp32 sums.

    The weight passes through ``workspace`` in ranges of outputs, each multiplied by the library into its columns.
    Raises KernelArgumentError for shapes and dtypes that do not fit, and for a workspace that holds not one tile.
    """
    outputs, inputs = weight.shape
    sizes = named_sizes("dequant_matmul", {"x": (x, torch.float16, ("rows", inputs))})
    step = workspace.rows(inputs, TILE)
    y = x.new_empty(sizes["rows"], outputs)
    for start in range(0, outputs, step):
        stop = min(start + step, outputs)
        tiles = slice(start // TILE, -(-stop // TILE))
        w = dequant_int4(weight, tiles=tiles, out=workspace.take(stop - start, inputs, x.device), rung=rung)
        half_matmul(x, w, y[:, start:stop])
    return y


def macros(group_size: int, form: Form) -> dict[str, int]:
    """How the kernels are compiled for groups of ``group_size`` inputs in the given form."""
    return {"GROUP": group_size, "SCALE_BIAS": int(form == "scale_bias"), "THREADS": THREADS}


@cache
def _kernel(rung: str, group_size: int, form: Form) -> Kernel:
    return Kernel("dequant_int4", rung, "dequant_int4", macros(group_size, form))


def _blocks(rung: str, weight: PackedInt4) -> int:
    """A thread for each weight, or a warp for each group of a tile."""
    if rung == RUNGS[0]:
        return weight.outputs * -(-weight.shape[1] // THREADS)
    tiles, groups, _ = weight.data.shape
    return -(-tiles * groups * WARP // THREADS)


def _tile_range(weight: PackedInt4, tiles: slice | None) -> tuple[int, int]:
    count = weight.data.shape[0]
    asked = slice(None) if tiles is None else tiles
    plain = isinstance(asked, slice) and asked.step in (None, 1)
    plain = plain and all(end is None or (type(end) is int and 0 <= end <= count) for end in (asked.start, asked.stop))
    start, stop, _ = asked.indices(count) if plain else (0, 0, 1)
    if stop <= start:
        message = f"dequant_int4: tiles {tiles} of {count}."
        raise KernelArgumentError(message, cure="Give a plain range of at least one tile: slice(first, last + 1).")
    return start, stop


def _half_from_double(exact: Tensor) -> Tensor:
    """fp64 -> fp16 with one rounding; torch's own conversion goes through fp32 and may round twice.

    On the way fp32 is rounded to odd: a number that does not fit gets the neighbour whose last bit is 1, which never
    looks like the middle between two halves.
    """
    nearest = exact.float()
    bits = nearest.view(torch.int32)
    toward_zero = bits - (nearest.double().abs() > exact.abs()).int()
    odd = torch.where(nearest.double() == exact, bits, toward_zero | 1)
    return odd.view(torch.float32).half()

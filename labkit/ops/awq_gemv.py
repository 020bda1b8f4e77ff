"""Few rows times an INT4 weight: y = x W^T for decoding, where reading the weight is nearly all of the time.

    y[m, n] = sum over k of w[n, k] x[m, k] (+ residual[m, n]),    w = (q - z) s or q s + b
    silu_mul: the weight is [gate | up], y = silu(x gate^T) * (x up^T)

Sums are fp32 (the last rung adds integers, exactly, within groups), the result is rounded once. x is 1 to 8 rows. The
idea of reading weights in the order of the warp's lanes: TurboMind (lmdeploy), Marlin (Frantar et al. 2024,
arXiv:2408.11743).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import WARP, chosen_rung
from labkit.ops.gemv import MOST_ROWS, Operands, operands, reference_product, row_class
from labkit.ops.multiprocessors import processors
from labkit.ops.silu_mul import reference as silu_reference
from labkit.ops.split_k import arrival_counters
from labkit.ops.weight_checks import check_packed
from labkit.quant.int4 import Form
from labkit.quant.pack import TILE, PackedInt4, unpack

__all__ = ["MOST_ROWS", "RUNGS", "awq_gemv", "macros", "reference"]

RUNGS = ["1_naive", "2_wide_loads", "3_magic_halves", "4_split_k", "5_integer_dot"]
BATCH = 128  # inputs that the last rung takes at a time
FULL = 16  # warps that keep a multiprocessor's share of the memory busy
FEWEST_STEPS = 2  # of a warp: with fewer, adding up the shares of K costs more than they save
EVEN = 0.9  # of the multiprocessors busy in the last round of blocks: then nothing is gained by smaller ones
NEARLY_EVEN = 0.84  # the same for shares that need not begin with columns


def awq_gemv(
    x: Tensor, weight: PackedInt4, *, residual: Tensor | None = None, silu_mul: bool = False, rung: str | None = None
) -> Tensor:
    """x: fp16 [M, K], M from 1 to 8; residual: fp16 [M, N]. Returns fp16 [M, N], or [M, N / 2] with ``silu_mul``.

    With ``silu_mul`` half of the weight's outputs must be a multiple of 32, and there is no residual.
    An x that is not dense, or does not start at a multiple of 16 bytes, is copied first.
    Raises KernelArgumentError for what the kernels do not take.
    """
    _check(weight, residual, silu_mul)
    if executor_for(x, weight.data) == "torch":
        return reference(x, weight, residual=residual, silu_mul=silu_mul)
    given = operands("awq_gemv", x, residual, *weight.shape)
    rung = chosen_rung("awq_gemv", rung, RUNGS)
    if silu_mul:
        given = given._replace(y=x.new_empty(len(x), weight.shape[0] // 2))
    if given.y.numel():
        _launch(rung, given, weight, silu_mul)
    return given.y


def reference(x: Tensor, weight: PackedInt4, *, residual: Tensor | None = None, silu_mul: bool = False) -> Tensor:
    """The definition in torch: fp32 products and sums, rounded once."""
    dense = unpack(weight).dequantize()
    if not silu_mul:
        return reference_product(x, dense, residual)
    return silu_reference(x.float() @ dense.T).to(x.dtype)


def macros(group_size: int, form: Form, rows: int) -> dict[str, int]:
    """How the kernels are compiled for weights of a group size and form, and for x of up to ``rows`` rows."""
    size = row_class(rows)
    warps = 8 if size in (1, 4) else 4
    return {"GROUP": group_size, "SCALE_BIAS": int(form == "scale_bias"), "ROWS": size, "WARPS": warps}


@cache
def _kernel(rung: str, entry: str, group_size: int, form: Form, size: int) -> tuple[Kernel, int]:
    made = macros(group_size, form, size)
    return Kernel("awq_gemv", rung, entry, made), made["WARPS"]


def _launch(rung: str, given: Operands, weight: PackedInt4, silu_mul: bool) -> None:
    (rows, width), (outputs, inputs) = given.y.shape, weight.shape
    size = row_class(rows)
    entry = "awq_gemv_silu_mul" if silu_mul else "awq_gemv"
    kernel, warps = _kernel(rung, entry, weight.group_size, weight.form, size)
    columns, outputs_of_column = _columns(rung, width, size, silu_mul)
    device, steps = given.x.device, inputs // weight.group_size
    grid: tuple[int, int] | int
    partials: Tensor | Out | None = None
    arrivals: Tensor | None = None
    if rung == RUNGS[-1]:
        grid = blocks_of_last_rung(columns, -(-inputs // BATCH), size, warps, device)
        if grid != columns:  # two places for each block, which may fill but one: no Out
            partials = torch.empty(2 * grid * size * outputs_of_column, device=device)
            arrivals = arrival_counters(device, columns)
    elif rung == RUNGS[-2]:
        grid = columns, shares_of_k(columns, steps, warps, device)
        if grid[1] > 1:
            partials = Out(torch.empty(columns * grid[1] * size * outputs_of_column, device=device))
            arrivals = arrival_counters(device, columns)
    else:
        grid = -(-columns // warps), rows if rung == RUNGS[0] else 1
    tensors = [given.x, weight.data, given.residual, Out(given.y), partials, arrivals]
    kernel.launch(grid, warps * WARP, [*tensors, rows, outputs, steps])


def _columns(rung: str, width: int, size: int, silu_mul: bool) -> tuple[int, int]:
    """Columns of the weight (tiles, where warps have one each), and how many of its outputs each holds.

    Those of the last rung are LANES times PARTS of its source.
    """
    if rung == RUNGS[-1]:
        outputs = 32 if size == 1 else 64
        return -(-width * (2 if silu_mul else 1) // outputs), outputs
    return -(-width // TILE), 2 * TILE if silu_mul else TILE


def blocks_of_last_rung(columns: int, batches: int, size: int, warps: int, device: torch.device) -> int:
    """Blocks among which the last rung divides all ``batches`` of its ``columns`` evenly: at most one for each batch.

    So many that shares begin with columns. But for a class of four rows, which computes as long as it reads, one for
    each multiprocessor, unless every column is one block's and these keep the multiprocessors busy nearly evenly, or
    the warps would have little to do. (Found by trying, on an H200.) The kernel multiplies the number of blocks by that
    of all batches in 32 bits.
    """
    every, shares = columns * batches, shares_of_k(columns, batches, warps, device)
    blocks = columns * shares
    little = every < FEWEST_STEPS * warps * processors(device)
    if size == 4 and not (shares == 1 and (little or _busy(columns, device) >= NEARLY_EVEN)):
        blocks = min(processors(device), every)
    return min(blocks, (2**32 - 1) // every)


def shares_of_k(columns: int, steps: int, warps: int, device: torch.device) -> int:
    """Blocks that share K: so many that every multiprocessor has FULL warps, and each warp FEWEST_STEPS steps.

    Two shares are not worth it where the columns alone keep the multiprocessors evenly busy. (Found by trying, on an
    H200.)
    """
    wanted = round(FULL * processors(device) / (columns * warps))
    if wanted <= 2 and _busy(columns, device) >= EVEN:
        return 1
    return max(1, min(wanted, steps // (FEWEST_STEPS * warps)))


def _busy(blocks: int, device: torch.device) -> float:
    """Share of the multiprocessors that have a block, on average over all rounds: lower the emptier the last one is."""
    count = processors(device)
    return blocks / (-(-blocks // count) * count)


def _check(weight: PackedInt4, residual: Tensor | None, silu_mul: bool) -> None:
    check_packed("awq_gemv", weight)
    if not silu_mul:
        return
    if residual is not None:
        raise KernelArgumentError("awq_gemv: silu_mul with a residual.", cure="Add the residual afterwards.")
    if weight.shape[0] % (2 * TILE):
        message = f"awq_gemv: [gate | up] has {weight.shape[0]} outputs; silu_mul takes a multiple of {2 * TILE}."
        raise KernelArgumentError(message, cure="Call awq_gemv and silu_mul one after the other.")

"""gdn_conv and gated_rmsnorm against fp64, and what lies in the histories afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from helpers.accuracy import HALF_STEP, QUANTIZED, Shape, relative_error
from helpers.ops_kv import assert_same, hard_heads
from helpers.ops_qk import moved
from torch import Tensor

from labkit.device import executor_for
from labkit.ops import gated_rmsnorm, gdn_conv
from labkit.ops.state_batch import StateBatch

HALVES_LOSE = 2.0**-25  # half of the distance between the smallest halves
BLOCK = 64  # channels that are judged together in v, and drawn together everywhere

SMALL: dict[str, list[Shape]] = {
    # rows and first position of each sequence, heads of q and k, of v, their sizes, inputs of the convolution, elements
    # between the rows
    "gdn_conv": [
        ((1, 1, 40), (5, 0, 3), 1, 2, 64, 64, 4, 128),
        ((17, 2), (0, 0), 1, 1, 128, 128, 4, 0),
        ((2, 1, 16, 3, 48), (0, 1, 7, 64, 0), 2, 2, 64, 64, 4, 4),
        ((1,) * 35, (0, 1, 2, 70, 0) * 7, 1, 1, 64, 64, 4, 0),
        ((33, 1), (1, 2), 3, 3, 64, 64, 3, 1),
        ((5, 2, 1), (0, 9, 0), 2, 5, 64, 128, 2, 2),
        ((20,), (64,), 1, 2, 128, 64, 4, 6),
    ],
    # rows, heads, head, elements between the rows of the gate
    "gated_rmsnorm": [(3, 3, 128, 0), (2, 5, 64, 128), (1, 1, 128, 0), (4, 2, 64, 1), (2, 7, 128, 6), (3, 1, 128, 3)],
}
LARGE: dict[str, list[Shape]] = {
    "gdn_conv": [
        ((4096,), (0,), 16, 48, 128, 128, 4, 6144),
        ((4096,), (640,), 8, 24, 128, 128, 4, 3072),
        ((1,) * 64, tuple(range(0, 640, 10)), 16, 48, 128, 128, 4, 6144),
        ((1,) * 64, tuple(range(64)), 8, 24, 128, 128, 4, 3072),
        ((1,) * 33 + (1000, 2), (*range(33), 0, 0), 8, 24, 128, 128, 4, 3072),
        ((1,), (100,), 8, 24, 128, 128, 4, 3072),
        ((63, 64, 65, 2, 1), (0, 1, 64, 0, 5), 3, 9, 64, 64, 3, 1),
    ],
    "gated_rmsnorm": [
        (4096, 48, 128, 10240),
        (4096, 24, 128, 5120),
        (64, 48, 128, 10240),
        (1, 24, 128, 0),
        (1001, 9, 64, 3),
    ],
}


class Step(NamedTuple):
    """What gdn_conv is given, and the inputs that each sequence had seen before."""

    u: Tensor
    weight: Tensor
    history: Tensor
    batch: StateBatch
    past: list[Tensor]


def random_step(
    rows: tuple[int, ...], starts: tuple[int, ...], channels: int, width: int, gap: int, device: str = "cpu"
) -> Step:
    """Hard inputs whose filtered sums are halves. NaN lies between the rows and wherever no history is."""
    room = torch.full((sum(rows), channels + gap), float("nan"), dtype=torch.float16)
    u = room[:, :channels].copy_(hard_heads(sum(rows), channels // BLOCK, BLOCK, finite=True).flatten(1))
    weight = torch.randn(channels, width)
    weight /= weight.abs().sum(1, keepdim=True)  # so that the largest halves do not grow
    slots = torch.randperm(len(rows) + 2)[: len(rows)].tolist()
    history = torch.full((len(rows) + 2, width - 1, channels), float("nan"), dtype=torch.float16)
    seen = [slot for slot, start in zip(slots, starts, strict=True) if start]
    history[seen] = hard_heads(len(seen) * (width - 1), channels // BLOCK, BLOCK, finite=True).view(history[seen].shape)
    past = [history[slot] if start else torch.zeros_like(history[0]) for slot, start in zip(slots, starts, strict=True)]
    batch = StateBatch.of(rows, starts, slots, device)
    given = moved(u, device), weight.to(device), history.clone().to(device)
    return Step(*given, batch, [x.clone().to(device) for x in past])


def silenced(step: Step, channels: slice) -> Step:
    """The same step, in which a head has heard nothing: its length is 0."""
    for x in (step.u, *step.past):
        x[..., channels] = 0
    step.history[..., channels] *= 0  # where NaN stays NaN
    return step


def exact_gdn_conv(step: Step, key_heads: int, key_dim: int) -> tuple[Tensor, Tensor]:
    """The outputs in fp64, and the factor that each was multiplied by after the convolution: both [T, C]."""
    outputs, width = [], step.weight.shape[1]
    for past, (first, end, *_) in zip(step.past, step.batch.spans, strict=True):
        inputs = torch.cat((past, step.u[first:end])).double()
        windows = inputs.unfold(0, width, 1)  # [rows, C, W]
        sums = (windows * step.weight.double()).sum(-1)
        outputs.append(sums * sums.sigmoid())
    out = torch.cat(outputs)
    factor = torch.ones_like(out)
    for head in range(2 * key_heads):
        channels = slice(head * key_dim, (head + 1) * key_dim)
        length = (out[:, channels].square().sum(1, keepdim=True) + 1e-6).sqrt()
        factor[:, channels] = (key_dim**-0.5 if head < key_heads else 1.0) / length
    return out * factor, factor


def check_gdn_conv(rung: str, shape: Shape, device: str) -> None:
    """Outputs against fp64, head by head; histories bit for bit, and no other slot touched."""
    rows, starts, key_heads, value_heads, key_dim, value_dim, width, gap = shape
    keys = 2 * key_heads * key_dim
    step = random_step(rows, starts, keys + value_heads * value_dim, width, gap, device)
    if key_heads > 1:
        step = silenced(step, slice(keys - key_dim, keys))
    exact, factor = exact_gdn_conv(step, key_heads, key_dim)
    expected = step.history.clone()
    for past, (first, end, _, slot) in zip(step.past, step.batch.spans, strict=True):
        expected[slot] = torch.cat((past, step.u[first:end]))[1 - width :]
    out = gdn_conv.gdn_conv(step.u, step.weight, step.history, step.batch, key_heads, key_dim, rung=rung)
    tolerance = HALF_STEP
    if executor_for(step.u) == "torch":
        assert out.dtype == torch.float32
    else:
        assert out.dtype == torch.float16 and out.is_contiguous()
        if rung == "1_naive":  # which leaves halves between the filter and the norm
            tolerance, lost = QUANTIZED, HALVES_LOSE * factor
            out = out.double() - (out.double() - exact).clamp(-lost, lost)
    for part, size in ((slice(0, keys), key_dim), (slice(keys, None), BLOCK)):
        relative_error(*(x[:, part].unflatten(1, (-1, size)) for x in (out, exact)), tolerance)
    assert_same(step.history, expected)


def check_gated_rmsnorm(rung: str, shape: Shape, device: str) -> None:
    count, heads, dim, gap = shape
    x = torch.randn(count, heads, dim) * 10 ** torch.empty(count, heads, 1).uniform_(-4, 4)
    x[-1, -1] = 0
    room = torch.full((count, heads * dim + gap), float("nan"), dtype=torch.float16)
    gate = room[:, : heads * dim].copy_(torch.randn(count, heads * dim) * 5)
    gate[0, 0] = -60000.0  # exp(-gate) overflows, and the result is 0
    gate[0, 1] = 2000.0
    weight = torch.empty(dim).uniform_(0.2, 1.5) * torch.randn(dim).sign()
    x, gate, weight = x.to(device), moved(gate, device), weight.to(device)
    y = gated_rmsnorm.gated_rmsnorm(x, gate, weight, 1e-6, rung=rung)
    assert y.shape == gate.shape and y.dtype == torch.float16 and y.is_contiguous()
    relative_error(y.unflatten(1, (heads, dim)), exact_gated_rmsnorm(x, gate, weight, 1e-6), HALF_STEP)


def exact_gated_rmsnorm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In fp64: [T, heads, D]."""
    x, gate = x.double(), gate.double().view(x.shape)
    return weight.double() * x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gate * gate.sigmoid()


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "gdn_conv": (gdn_conv.RUNGS, check_gdn_conv),
    "gated_rmsnorm": (gated_rmsnorm.RUNGS, check_gated_rmsnorm),
}
FOLDERS: dict[str, str] = {}

"""gdn_decode: outputs and states against fp64 after a step, other slots as they were, and inputs that make it hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from helpers.accuracy import FP32_SUMS, HALF_STEP, Shape, relative_error
from helpers.ops_kv import assert_same
from helpers.ops_qk import moved
from torch import Tensor

from labkit.ops import gdn_decode
from labkit.ops.state_batch import StateBatch

EPS = 1e-6
OF_SUMS = 2e-7  # of its products' sizes, what an fp32 sum of 128 may be off by: three roundings
TENSORS = ("qkv", "z", "b", "a", "a_log", "dt_bias", "norm_weight", "state")
SPARE = 3  # slots that no sequence of a step has

SMALL: dict[str, list[Shape]] = {
    # sequences, of which the last few are at position 0, heads of keys and of values, dk, dv, elements between rows
    "gdn_decode": [
        (2, 1, 1, 3, 128, 128, 0),
        (1, 0, 1, 2, 64, 64, 5),
        (3, 2, 2, 2, 64, 128, 8),
        (2, 0, 2, 4, 128, 64, 1),
        (5, 1, 1, 1, 64, 64, 0),
        (1, 1, 1, 1, 128, 128, 3),
    ],
}
LARGE: dict[str, list[Shape]] = {
    "gdn_decode": [
        (1, 0, 8, 24, 128, 128, 0),
        (8, 1, 8, 24, 128, 128, 0),
        (64, 5, 8, 24, 128, 128, 0),
        (1, 0, 16, 48, 128, 128, 0),
        (33, 1, 16, 48, 128, 128, 8),
        (17, 3, 4, 12, 64, 128, 1),
        (100, 100, 16, 16, 128, 64, 0),
    ],
}


@dataclass(frozen=True)
class Inputs:
    """Arguments of one step, by their names. qkv, z, b, a: fp16, the last three views of projections."""

    qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm_weight: Tensor
    state: Tensor
    batch: StateBatch
    key_heads: int

    def run(self, rung: str | None = None) -> Tensor:
        return gdn_decode.gdn_decode(**self.arguments(), rung=rung)

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*TENSORS, "batch", "key_heads")} | {"eps": EPS}

    def by_heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k [B, Hv, dk] and v [B, Hv, dv] in fp64."""
        heads, dk, dv = self.state.shape[1:]
        q, k, v = self.qkv.double().split((self.key_heads * dk, self.key_heads * dk, heads * dv), dim=1)
        owner = torch.arange(heads, device=q.device) // (heads // self.key_heads)
        q, k = (x.unflatten(1, (self.key_heads, dk))[:, owner] for x in (q, k))
        return q, k, v.unflatten(1, (heads, dv))


def draw_inputs(shape: Shape, device: str = "cpu") -> Inputs:
    """Gates from open to shut, exponentials beyond a half, states far from 0, NaN wherever nothing may be read."""
    count, fresh, key_heads, heads, dk, dv, gap = shape
    unit = torch.nn.functional.normalize(torch.randn(count, 2, key_heads, dk), dim=-1)
    unit[:, 0] *= dk**-0.5
    v = torch.randn(count, heads, dv) * 10 ** torch.empty(count, heads, 1).uniform_(-1, 2.5)
    qkv = torch.cat((unit.flatten(1), v.flatten(1)), dim=1).half()
    z = projection(torch.randn(count, heads * dv) * 5, gap)
    z[:, ::37] = -60000.0  # exp(-z) overflows, and the result is 0
    z[:, 1::257] = 300.0
    b = projection(torch.randn(count, heads) * 6, gap)
    b[torch.rand(b.shape) < 0.1] = -60000.0
    b[torch.rand(b.shape) < 0.1] = 60000.0
    a = projection(torch.empty(count, heads).uniform_(-18, 8), gap)
    a_log = torch.empty(heads).uniform_(-3, 2)
    if heads > 1:
        a_log[heads // 2] = 12.0  # exp(12) is no half, and g goes down to -1e6
    dt_bias, norm_weight = torch.randn(heads), torch.empty(dv).uniform_(0.5, 2.0)
    state = torch.randn(count + SPARE, heads, dk, dv) * 10 ** torch.empty(count + SPARE, heads, 1, 1).uniform_(-2, 3)
    slots = torch.randperm(count + SPARE)[:count]
    state[[slot for slot in range(count + SPARE) if slot not in slots[: count - fresh]]] = torch.nan
    starts = [1 + 37 * s for s in range(count - fresh)] + [0] * fresh
    batch = StateBatch.of([1] * count, starts, slots.tolist(), device)
    drawn = Inputs(qkv, z, b, a, a_log, dt_bias, norm_weight, state, batch, key_heads)
    return changed(drawn, **{name: moved(getattr(drawn, name), device) for name in TENSORS})


def projection(x: Tensor, gap: int) -> Tensor:
    """The same in fp16, as a view of wider rows: NaN on either side."""
    wide = torch.full((x.shape[0], 2 + x.shape[1] + gap), torch.nan, dtype=torch.float16)
    wide[:, 2 : 2 + x.shape[1]] = x
    return wide[:, 2 : 2 + x.shape[1]]


def exact_step(inputs: Inputs, old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The definition in fp64. old: [B, Hv, dk, dv], the states before.

    Returns the output, the states after, and of each head [B, Hv] how much of its sums S^T q cancelled: the norm of the
    products' sizes over that of the sums. Where k and q are nearly orthogonal and the state holds one key, that is
    much, and what fp32 sums round is no longer small beside what is left of them.
    """
    q, k, v = inputs.by_heads()
    x = inputs.a.double() + inputs.dt_bias.double()
    softplus = x.clamp(min=0) + (-x.abs()).exp().log1p()
    state = old.double() * (-inputs.a_log.double().exp() * softplus).exp()[..., None, None]
    delta = inputs.b.double().sigmoid()[..., None] * (v - torch.einsum("bhij,bhi->bhj", state, k))
    written = k[..., :, None] * delta[..., None, :]
    sizes = torch.einsum("bhij,bhi->bhj", state.abs() + written.abs(), q.abs())
    state = state + written
    o = torch.einsum("bhij,bhi->bhj", state, q)
    unit = o * (o.square().mean(-1, keepdim=True) + EPS).rsqrt() * inputs.norm_weight.double()
    z = inputs.z.double().unflatten(1, (o.shape[1], -1))
    return unit * z * z.sigmoid(), state, sizes.norm(dim=-1) / o.norm(dim=-1).clamp(min=1e-30)


def before(inputs: Inputs) -> Tensor:
    """The states of the batch's sequences before a step: zeros at position 0."""
    fresh = (inputs.batch.starts == 0)[:, None, None, None]
    return inputs.state[inputs.batch.slots].masked_fill(fresh, 0)


def check_step(inputs: Inputs, run: Callable[[Inputs], Tensor]) -> None:
    """One step, its outputs head by head and its states row by row, and no other state touched."""
    heads, _, dv = inputs.state.shape[1:]
    exact_out, exact_state, cancelled = exact_step(inputs, before(inputs))
    others = inputs.state.clone()
    out = run(inputs)
    assert out.shape == inputs.z.shape and out.dtype == inputs.z.dtype and out.is_contiguous()
    shares = HALF_STEP / (HALF_STEP + OF_SUMS * cancelled)[..., None]
    relative_error(exact_out + (out.unflatten(1, (heads, dv)) - exact_out) * shares, exact_out, HALF_STEP)
    relative_error(inputs.state[inputs.batch.slots], exact_state, FP32_SUMS)
    untouched = torch.ones(len(others), dtype=torch.bool)
    untouched[inputs.batch.slots.cpu()] = False
    assert_same(inputs.state.cpu()[untouched], others.cpu()[untouched])


def check_gdn_decode(rung: str, shape: Shape, device: str) -> None:
    check_step(draw_inputs(shape, device), lambda inputs: inputs.run(rung))


def changed(inputs: Inputs, **changes: Any) -> Inputs:
    return replace(inputs, **changes)


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "gdn_decode": (gdn_decode.RUNGS, check_gdn_decode),
}
FOLDERS: dict[str, str] = {}

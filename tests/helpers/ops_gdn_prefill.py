"""gdn_prefill: outputs and states against a plain recurrence in fp64, with NaN in every slot that nothing may read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from unittest import mock

import torch
from helpers.accuracy import QUANTIZED, Shape, relative_error
from torch import Tensor

from labkit.device import executor_for
from labkit.ops import gdn_prefill
from labkit.ops.rmsnorm import l2norm
from labkit.ops.state_batch import StateBatch

FP32_CHUNKS = 1e-4
LEAST_LEFT = 30
TOLERANCES = {"1_recurrent": FP32_CHUNKS, "2_chunked": FP32_CHUNKS, "3_tensor_cores": QUANTIZED}

# rows of each sequence, their first positions, key heads, value heads, dk, dv; and chunks of a round, where not all fit
SMALL: dict[str, list[Shape]] = {
    "gdn_prefill": [
        ((1, 63, 3, 66), (0, 1, 62, 0), 1, 2, 64, 64, 2),
        ((65,), (0,), 1, 1, 128, 128),
        ((70, 1), (100, 128), 1, 2, 128, 64),
        ((2, 64), (0, 64), 2, 2, 64, 128),
        ((64, 1), (0, 1), 1, 3, 128, 128),
    ],
}
LARGE: dict[str, list[Shape]] = {
    "gdn_prefill": [
        ((4096,), (0,), 8, 24, 128, 128),
        ((1, 63, 64, 65, 1000), (0, 1, 64, 3, 640), 8, 24, 128, 128),
        ((2048,), (0,), 16, 48, 128, 128),
        ((1, 1, 500, 200), (77, 4000, 0, 33), 4, 8, 64, 64),
        ((300, 129), (0, 63), 2, 6, 128, 64, 4),
        ((300, 129), (64, 0), 2, 2, 64, 128),
    ],
}


@dataclass
class Inputs:
    """Arguments of gdn_prefill; ``before``: what the states are really worth, those of fresh sequences zero."""

    qkv: Tensor
    b: Tensor
    a: Tensor
    a_log: Tensor
    dt_bias: Tensor
    state: Tensor
    batch: StateBatch
    key_heads: int

    @property
    def dims(self) -> tuple[int, int, int]:
        """Value heads, dk, dv."""
        return tuple(self.state.shape[1:])

    def run(self, rung: str | None = None) -> Tensor:
        given = (self.qkv, self.b, self.a, self.a_log, self.dt_bias, self.state, self.batch, self.key_heads)
        return gdn_prefill.gdn_prefill(*given, rung=rung)


def projections(rows: int, heads: int) -> tuple[Tensor, Tensor]:
    """b and a as parts of wider rows, with NaN between: nothing may read that."""
    wide = torch.full((rows, 2 * heads + 3), float("nan")).half()
    b, a = wide[:, :heads], wide[:, heads + 1 : 2 * heads + 1]
    b.copy_(torch.randn(rows, heads) * 3)
    a.copy_(torch.randn(rows, heads) * 2)
    return b, a


def channels(rows: int, key_heads: int, heads: int, dk: int, dv: int) -> Tensor:
    """q | k | v as the convolution leaves them: normalised, as halves; values of very different sizes."""
    q, k = (l2norm(torch.randn(rows, key_heads, dk)) for _ in range(2))
    v = torch.randn(rows, heads, dv) * 10 ** torch.empty(1, heads, 1).uniform_(-2, 2)
    return torch.cat([x.flatten(1) for x in (q * dk**-0.5, k, v)], dim=1).half()


def random_inputs(shape: Shape, device: str = "cpu") -> Inputs:
    """Decays from almost none to e^-30 and beyond, by head; slots in no order, NaN in those that nothing may read."""
    rows, starts, key_heads, heads, dk, dv, *_ = shape
    slots = torch.randperm(2 * len(rows) + 1)[: len(rows)].tolist()
    total = sum(rows)
    qkv, (b, a) = channels(total, key_heads, heads, dk, dv), projections(total, heads)
    a_log = torch.linspace(-9, 3, heads) if heads > 1 else torch.tensor([-2.0])
    state = torch.full((2 * len(rows) + 1, heads, dk, dv), float("nan"))
    for slot, start in zip(slots, starts, strict=True):
        if start:
            size = qkv[:, -heads * dv :].float().view(total, heads, dv).abs().amax((0, 2))
            state[slot] = torch.randn(heads, dk, dv) * size[:, None, None] * dk**-0.5
    tensors = (x.to(device) for x in (a_log, torch.randn(heads), state))
    moved_b, moved_a = parts_on(device, b, a)
    batch = StateBatch.of(list(rows), list(starts), slots, device)
    return Inputs(qkv.to(device), moved_b, moved_a, *tensors, batch, key_heads)


def one_key(inputs: Inputs, strength: float) -> None:
    """The keys of each head become one, hardly anything decays. Queries look at it: orthogonal ones would see nothing.

    strength: b of every row.
    """
    width = inputs.key_heads * inputs.dims[1]
    q, k = (inputs.qkv[:, i * width : (i + 1) * width].unflatten(1, (inputs.key_heads, -1)) for i in (0, 1))
    k.copy_(k[:1].expand_as(k))
    q.copy_(l2norm(q.float() + k.float()) * inputs.dims[1] ** -0.5)
    inputs.b.fill_(strength)
    inputs.a_log.fill_(-14)


def parts_on(device: str, *parts: Tensor) -> list[Tensor]:
    """The same views of the same rows on another device."""
    base = parts[0]._base
    assert base is not None
    whole = base.to(device)
    return [whole.as_strided(x.shape, x.stride(), x.storage_offset()) for x in parts]


def exact(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [T, Hv, dv] and states of the batch's sequences [S, Hv, dk, dv] in fp64, one row after the other.

    Last come the sizes of what outputs are sums of, |S|^T |q|.
    """
    heads, dk, dv = inputs.dims
    width = inputs.key_heads * dk
    q, k, v = inputs.qkv.double().split((width, width, heads * dv), dim=1)
    repeat = heads // inputs.key_heads
    q, k = (x.unflatten(1, (-1, dk)).repeat_interleave(repeat, dim=1) for x in (q, k))
    v, beta = v.unflatten(1, (heads, dv)), inputs.b.double().sigmoid()
    x = inputs.a.double() + inputs.dt_bias.double()
    decay = (-inputs.a_log.double().exp() * torch.logaddexp(x, torch.zeros_like(x))).exp()
    out, added, states = torch.empty_like(v), torch.empty_like(v), []
    for first, behind, start, slot in inputs.batch.spans:
        s = inputs.state[slot].double() if start else torch.zeros_like(inputs.state[slot], dtype=torch.float64)
        for t in range(first, behind):
            s = s * decay[t, :, None, None]
            d = beta[t, :, None] * (v[t] - torch.einsum("hkv,hk->hv", s, k[t]))
            s = s + k[t, :, :, None] * d[:, None]
            out[t] = torch.einsum("hkv,hk->hv", s, q[t])
            added[t] = torch.einsum("hkv,hk->hv", s.abs(), q[t].abs())
        states.append(s)
    return out, torch.stack(states), added


def outputs_error(ours: Tensor, expected: Tensor, added: Tensor, tolerance: float) -> None:
    """``relative_error``, in which rows count as at least 1 / LEAST_LEFT of what they are sums of.

    Where fast decay leaves one key in a state, q . k cancels to that little in every twentieth row or so, and operands
    that are halves have then lost as many digits, whatever a kernel does.
    """
    least = added.norm(dim=-1, keepdim=True) / LEAST_LEFT
    lengthened = (least.square() - expected.square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
    relative_error(*(torch.cat((x, lengthened), dim=-1) for x in (ours.double(), expected)), tolerance)


def compare(inputs: Inputs, rung: str | None, tolerance: float) -> None:
    """Outputs, states, and that no other slot was touched."""
    expected, expected_states, added = exact(inputs)
    before = inputs.state.clone()
    out = inputs.run(rung)
    assert out.dtype == torch.float32 and out.is_contiguous()
    slots = inputs.batch.slots
    outputs_error(out, expected, added, tolerance)
    relative_error(inputs.state[slots].flatten(2), expected_states.flatten(2), tolerance)
    others = torch.ones(len(before), dtype=torch.bool, device=before.device)
    others[slots] = False
    assert torch.equal(inputs.state[others].view(torch.int32), before[others].view(torch.int32))


def check_gdn_prefill(rung: str, shape: Shape, device: str) -> None:
    inputs = random_inputs(shape, device)
    kernels = executor_for(inputs.qkv) != "torch"
    with rounds_of(inputs, rung, *shape[6:]):
        compare(inputs, rung, TOLERANCES[rung] if kernels else FP32_CHUNKS)


def rounds_of(inputs: Inputs, rung: str, chunks: int = 0) -> AbstractContextManager[object]:
    """Inside, the workspace holds that many chunks; 0: as many as ever."""
    heads, dk, dv = inputs.dims
    fitting = chunks * heads * gdn_prefill.chunk_bytes(rung, dk, dv)
    return mock.patch.object(gdn_prefill, "WORKSPACE_BYTES", fitting or gdn_prefill.WORKSPACE_BYTES)


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "gdn_prefill": (gdn_prefill.RUNGS, check_gdn_prefill),
}
FOLDERS: dict[str, str] = {}

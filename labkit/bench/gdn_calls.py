"""The calls that ``labkit bench gdn`` times: Gated DeltaNet's operations and their definitions in torch.

Every call has rows, parameters, slots and a result of its own: what one leaves in the L2 cache does not help the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.bench.clock import LABKIT
from labkit.bench.gdn_cases import Case
from labkit.bench.graph_timing import Call
from labkit.ops import gated_rmsnorm, gdn_conv, gdn_decode, gdn_prefill
from labkit.ops.state_batch import StateBatch

TORCH = "torch"  # the definition
EPS = 1e-6

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Operation:
    """One of ``labkit.ops``; ``run`` and ``reference`` take the same arguments, the first also a rung."""

    op: str
    rungs: Sequence[str]
    run: Callable[..., Tensor]
    reference: Callable[..., Tensor]


OPERATIONS: Mapping[str, Operation] = {
    "conv": Operation(gdn_conv.OP, gdn_conv.RUNGS, gdn_conv.gdn_conv, gdn_conv.reference),
    "decode": Operation(gdn_decode.OP, gdn_decode.RUNGS, gdn_decode.gdn_decode, gdn_decode.reference),
    "prefill": Operation(gdn_prefill.OP, gdn_prefill.RUNGS, gdn_prefill.gdn_prefill, gdn_prefill.reference),
    "norm": Operation(gated_rmsnorm.OP, gated_rmsnorm.RUNGS, gated_rmsnorm.gated_rmsnorm, gated_rmsnorm.reference),
}


def calls_of(case: Case, arguments: Iterable[Arguments], all_rungs: bool) -> dict[str, list[Call]]:
    """One call for each set of arguments, by the kernel's name."""
    operation, each = OPERATIONS[case.part], list(arguments)
    rungs = (None, *(operation.rungs if all_rungs else ()))
    kernels = {rung or LABKIT: partial(operation.run, rung=rung) for rung in rungs}
    named: dict[str, Callable[..., Tensor]] = {**kernels, TORCH: operation.reference}
    return {name: [_Keeping(partial(run, *given)) for given in each] for name, run in named.items()}


@dataclass
class _Keeping:
    """A call that holds its result until it is made again: else all calls of a graph would write to the same place."""

    call: Call
    result: object = None

    def __call__(self) -> object:
        self.result = self.call()
        return self.result


def arguments_of(case: Case, copies: int, device: torch.device | str) -> list[Arguments]:
    """Random arguments of ``copies`` calls, which change nothing of one another's."""
    return _Maker(case, copies, device).arguments()


@dataclass(frozen=True)
class _Maker:
    """Draws what the operations take: tensors of all calls at once, call i has [i], and slots among all states."""

    case: Case
    copies: int
    device: torch.device | str

    def arguments(self) -> list[Arguments]:
        parts = {"conv": self._conv, "decode": self._decode, "prefill": self._prefill, "norm": self._norm}
        return list(parts[self.case.part]())

    def _conv(self) -> Iterable[Arguments]:
        g = self.case.geometry
        u, _ = self._projections()
        weights, history = self._normal(g.channels, g.width), self._slots(g.width - 1, g.channels).half()
        for each, weight, batch in zip(u, weights, self._batches(), strict=True):
            yield each, weight, history, batch, g.key_heads, g.key_dim

    def _decode(self) -> Iterable[Arguments]:
        g = self.case.geometry
        _, z = self._projections()
        norm_weights, states = self._normal(g.value_dim), self._slots(g.value_heads, g.key_dim, g.value_dim)
        drawn = zip(self._convolved(), z, *self._gates(), norm_weights, self._batches(), strict=True)
        for qkv, each_z, b, a, a_log, dt_bias, norm_weight, batch in drawn:
            yield qkv, each_z, b, a, a_log, dt_bias, norm_weight, EPS, states, batch, g.key_heads

    def _prefill(self) -> Iterable[Arguments]:
        g = self.case.geometry
        states = self._slots(g.value_heads, g.key_dim, g.value_dim)
        for qkv, b, a, a_log, dt_bias, batch in zip(self._convolved(), *self._gates(), self._batches(), strict=True):
            yield qkv, b, a, a_log, dt_bias, states, batch, g.key_heads

    def _norm(self) -> Iterable[Arguments]:
        g = self.case.geometry
        x, (_, z) = self._normal(self.case.rows, g.value_heads, g.value_dim), self._projections()
        for each, gate, weight in zip(x, z, self._normal(g.value_dim), strict=True):
            yield each, gate, weight, EPS

    def _projections(self) -> tuple[Tensor, Tensor]:
        """u and z, fp16 [copies, rows, ...]: parts of one projection, whose rows lie apart."""
        g = self.case.geometry
        both = self._normal(self.case.rows, g.channels + g.values, dtype=torch.float16)
        return both[..., : g.channels], both[..., g.channels :]

    def _convolved(self) -> Tensor:
        """q | k | v as the convolution leaves them, fp16 [copies, rows, C]."""
        g = self.case.geometry
        qkv = self._normal(self.case.rows, g.channels, dtype=torch.float16)
        heads = qkv[..., : 2 * g.key_heads * g.key_dim].unflatten(-1, (2 * g.key_heads, g.key_dim))
        heads.copy_(F.normalize(heads, dim=-1))
        heads[..., : g.key_heads, :] *= g.key_dim**-0.5
        return qkv

    def _gates(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """b and a, parts of one projection; a_log and dt_bias: a state keeps most of itself from row to row."""
        heads = self.case.geometry.value_heads
        both = self._normal(self.case.rows, 2 * heads, dtype=torch.float16)
        a_log = math.log(16) * torch.rand(self.copies, heads, device=self.device)
        return both[..., :heads], both[..., heads:], a_log, self._normal(heads) - 5

    def _batches(self) -> list[StateBatch]:
        """Of every call; slots are scattered, as after hours of service."""
        case = self.case
        slots = torch.randperm(self.copies * case.sequences).view(self.copies, -1).tolist()
        rows, starts = [case.tokens] * case.sequences, [case.start] * case.sequences
        return [StateBatch.of(rows, starts, each, self.device) for each in slots]

    def _slots(self, *size: int) -> Tensor:
        """fp32 [slots, *size], for the sequences of all calls."""
        return torch.randn(self.copies * self.case.sequences, *size, device=self.device)

    def _normal(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """[copies, *size]."""
        return torch.randn(self.copies, *size, dtype=dtype, device=self.device)

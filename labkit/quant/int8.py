"""INT8 weights: w = q s with q in -127..127 and one scale for each group of neighbouring inputs.

A scale for every group, not for every row: one large weight then coarsens only its own 32 to 128 neighbours, for 0.125
to 0.5 more bits a weight; and the groups are those of the INT4 weights, so that both formats pack the same modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.quant.int4 import TILE, dense_output
from labkit.quant.pack import GROUP_SIZES


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """A quantized weight ``[N, K]``.

    q: int8 ``[N, K]``. scales: float16 ``[N, K / g]``; g is 32, 64 or 128.
    Raises ValueError if the shapes or dtypes do not belong together.
    """

    q: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        if self.q.dtype != torch.int8 or self.scales.dtype != torch.float16:
            raise ValueError(f"INT8 weight needs int8 and float16, not {self.q.dtype}, {self.scales.dtype}.")
        shapes = tuple(self.q.shape), tuple(self.scales.shape)
        if self.q.ndim != 2 or self.scales.ndim != 2 or len(self.q) != len(self.scales):
            raise ValueError(f"q {shapes[0]} and scales {shapes[1]} do not match.")
        groups = self.scales.shape[1]
        if not groups or self.q.shape[1] % groups or self.group_size not in GROUP_SIZES:
            raise ValueError(f"{shapes[0][1]} inputs and {groups} scales do not make groups of 32, 64 or 128.")

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs and inputs."""
        return self.q.shape[0], self.q.shape[1]

    @property
    def group_size(self) -> int:
        """Inputs that share a scale."""
        return self.q.shape[1] // self.scales.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return self.q.nbytes + self.scales.nbytes

    @property
    def device(self) -> torch.device:
        """Where the weight lies."""
        return self.q.device

    def to(self, device: torch.device | str) -> Int8Weight:
        """The same weight on another device."""
        return Int8Weight(self.q.to(device), self.scales.to(device))

    def dequantize(self, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """w as ``[N, K]`` in ``dtype``, computed in fp32, where it is exact, and rounded once.

        out: contiguous ``[N, K]`` workspace to write into; its dtype then counts.
        """
        out = dense_output(self.shape, dtype, self.device, out)
        step = max(1, TILE // self.shape[1])
        for q, scales, w in zip(self.q.split(step), self.scales.split(step), out.split(step), strict=True):
            grouped = q.view(*scales.shape, self.group_size)
            w.copy_((grouped.float() * scales.float().unsqueeze(-1)).view(q.shape))
        return out

    @staticmethod
    def can_cat(weights: Sequence[Int8Weight]) -> bool:
        """Whether ``cat`` can join them: same inputs and group size."""
        return len({(w.shape[1], w.group_size) for w in weights}) == 1

    @staticmethod
    def cat(weights: Sequence[Int8Weight]) -> Int8Weight:
        """Join along the outputs. Raises ValueError for weights of different kinds."""
        if not Int8Weight.can_cat(weights):
            kinds = ", ".join(f"K={w.shape[1]} group={w.group_size}" for w in weights)
            raise ValueError(f"INT8 weights of different kinds cannot be joined: {kinds or 'none given'}.")
        return Int8Weight(torch.cat([w.q for w in weights]), torch.cat([w.scales for w in weights]))

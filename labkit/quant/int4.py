"""INT4 weights: one packed form for every file format.

A linear layer's weight ``[N, K]`` (outputs, inputs) is kept as 4-bit numbers q in 0..15, two to a
byte, with two numbers per group of neighbouring inputs:

    scale_zero    w = (q - z) * s     groups[n, j] = (s, z)    AutoAWQ, GGUF Q4_0
    scale_bias    w = q * s + b       groups[n, j] = (s, b)    GGUF Q4_1

Each file keeps the form in which it loses nothing: turning one into the other rounds ``b = -z * s``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Form = Literal["scale_zero", "scale_bias"]

# Elements unpacked at a time: the temporaries of a large layer stay at some 10 MB, while a small one is done in a few
# whole passes (each pass of a threaded operation costs a start and an end).
TILE = 1 << 21


def dense_output(shape: tuple[int, int], dtype: torch.dtype, device: torch.device, out: Tensor | None) -> Tensor:
    """Where to dequantize to: ``out``, if given, else a new tensor. Raises ValueError for an out that does not fit."""
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if out.shape != shape or not out.is_contiguous():
        raise ValueError(f"workspace must be contiguous {shape}, not {tuple(out.shape)}.")
    return out


@dataclass(frozen=True, eq=False)
class Int4Weight:
    """A quantized weight ``[N, K]``.

    packed: uint8 ``[N, K // 2]``; byte i of row n holds element 2i low and element 2i + 1 high.
    groups: ``[N, K // g, 2]``, float16, or float32 where the file's scales do not fit float16.
    form: what the two numbers of a group mean (see the module's docstring).

    Raises ValueError if the shapes or dtypes do not belong together.
    """

    packed: Tensor
    groups: Tensor
    form: Form

    def __post_init__(self) -> None:
        if self.packed.dtype != torch.uint8 or self.groups.dtype not in (torch.float16, torch.float32):
            raise ValueError(f"INT4 weight needs uint8 and float16/32, not {self.packed.dtype}, {self.groups.dtype}.")
        if self.packed.ndim != 2 or self.groups.ndim != 3 or self.groups.shape[::2] != (len(self.packed), 2):
            raise ValueError(f"packed {tuple(self.packed.shape)} and groups {tuple(self.groups.shape)} do not match.")
        if self.groups.shape[1] == 0 or self.shape[1] % (2 * self.groups.shape[1]):
            raise ValueError(f"{self.shape[1]} inputs do not divide into {self.groups.shape[1]} even groups.")

    @staticmethod
    def from_nibbles(q: Tensor, groups: Tensor, form: Form) -> Int4Weight:
        """Pack ``q`` (uint8 ``[N, K]``, values 0..15, K even)."""
        return Int4Weight(q[:, 0::2] | (q[:, 1::2] << 4), groups, form)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs and inputs."""
        return self.packed.shape[0], 2 * self.packed.shape[1]

    @property
    def group_size(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.groups.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return self.packed.nbytes + self.groups.nbytes

    @property
    def device(self) -> torch.device:
        """Where the weight lies."""
        return self.packed.device

    def to(self, device: torch.device | str) -> Int4Weight:
        """The same weight on another device."""
        return Int4Weight(self.packed.to(device), self.groups.to(device), self.form)

    def unpack(self) -> Tensor:
        """q as uint8 ``[N, K]``.

        A byte hl becomes the two bytes 0l 0h by spreading it over a 16-bit word (little-endian, as all our targets).
        """
        word = self.packed.to(torch.int16)
        return ((word & 0x0F) | ((word & 0xF0) << 4)).view(torch.uint8)

    def dequantize(self, dtype: torch.dtype = torch.float32, out: Tensor | None = None) -> Tensor:
        """w as ``[N, K]`` in ``dtype``, computed in fp32 and rounded once.

        out: contiguous ``[N, K]`` workspace to write into; its dtype then counts.
        """
        out = dense_output(self.shape, dtype, self.device, out)
        step = self._rows_per_tile()
        for start in range(0, self.shape[0], step):
            self.rows(slice(start, start + step))._write(out[start : start + step])
        return out

    def _rows_per_tile(self) -> int:
        rows, columns = self.shape
        return max(1, TILE // columns) if self.device.type == "cpu" else max(1, rows)

    def _write(self, out: Tensor) -> None:
        tile = out if out.dtype == torch.float32 else torch.empty(self.shape, device=self.device)
        tile.copy_(self.unpack())
        scale, other = self.groups.float().split(1, dim=-1)
        grouped = tile.view(*self.groups.shape[:2], self.group_size)
        if self.form == "scale_zero":
            grouped.sub_(other).mul_(scale)
        else:
            grouped.mul_(scale).add_(other)
        if tile is not out:
            out.copy_(tile)

    def rows(self, rows: slice) -> Int4Weight:
        """The outputs in ``rows``, sharing memory."""
        return Int4Weight(self.packed[rows], self.groups[rows], self.form)

    def cols(self, cols: slice) -> Int4Weight:
        """The inputs in ``cols``, which must begin and end at group boundaries; shares memory."""
        start, stop, step = cols.indices(self.shape[1])
        size = self.group_size
        if step != 1 or start % size or stop % size or stop <= start:
            raise ValueError(f"inputs {start}:{stop}:{step} do not begin and end at groups of {size}.")
        return Int4Weight(
            self.packed[:, start // 2 : stop // 2], self.groups[:, start // size : stop // size], self.form
        )

    def permute_rows(self, index: Tensor) -> Int4Weight:
        """Row i of the result is row ``index[i]`` (int64) of this weight."""
        return Int4Weight(self.packed[index], self.groups[index], self.form)

    @staticmethod
    def can_cat(weights: Sequence[Int4Weight]) -> bool:
        """Whether ``cat`` can join them: same inputs, group size and form."""
        return len({(w.shape[1], w.group_size, w.form) for w in weights}) == 1

    @staticmethod
    def cat(weights: Sequence[Int4Weight]) -> Int4Weight:
        """Join along the outputs. If one has float32 groups, the result has (that loses nothing)."""
        if not Int4Weight.can_cat(weights):
            kinds = ", ".join(f"K={w.shape[1]} group={w.group_size} {w.form}" for w in weights)
            raise ValueError(f"INT4 weights of different kinds cannot be joined: {kinds or 'none given'}.")
        groups = torch.cat([w.groups for w in weights])
        return Int4Weight(torch.cat([w.packed for w in weights]), groups, weights[0].form)

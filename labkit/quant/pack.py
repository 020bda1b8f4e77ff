"""INT4 weights in the order in which the SM70 kernels read them.

A tile is 32 outputs, one for each lane of a warp. The kernels walk a tile along K, a group of g inputs at a time:

    data[tile, group]   int32 [32 + 4 g]    word l            half2 (scale, zero or bias) of lane l's output
                                            word 32 + 128 c + 4 l + j     inputs 32 c + 8 j .. + 7 of lane l's output

so that a warp reads its scales with one 128-byte load, and every 32 inputs with one 16-byte load a lane, side by side.
Lane l has output ``LANE_COLUMN[l]`` of the tile, the column of B that the tensor cores want from it when the four
quad-pairs of ``mma.m8n8k4`` lie side by side (PTX ISA, "Matrix fragments for mma.m8n8k4"). Inside a word, nibble p
holds input ``NIBBLE_INPUT[p]``: a mask then leaves two neighbours in the two halves of a register, from where one
``lop3`` makes a half2 of them (cuda/common/quant.cuh).

Outputs that do not fill the last tile are zeros with scale 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.quant.int4 import Form, Int4Weight

TILE = 32  # outputs: one a lane
CHUNK = 32  # inputs that a lane loads with one 16-byte instruction
GROUP_SIZES = (32, 64, 128)
PER_WORD = 8
LARGEST_ZERO = 16  # GPTQ files store z - 1, so their z may be one more than a nibble holds

# Quad-pair (l >> 2) & 3 holds columns 8 q .. 8 q + 7; lanes 16 and on hold the upper four of them.
LANE_COLUMN = tuple(8 * ((lane >> 2) & 3) + (lane & 3) + 4 * (lane >> 4) for lane in range(TILE))
NIBBLE_INPUT = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, eq=False)
class PackedInt4:
    """A weight ``[N, K]`` for the SM70 kernels.

    data: int32 ``[ceil(N / 32), K / g, 32 + 4 g]``, contiguous, as the module's docstring says.
    outputs: N. group_size: g. form: what a group's two halves mean, as in ``Int4Weight``.
    """

    data: Tensor
    outputs: int
    group_size: int
    form: Form

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs and inputs."""
        return self.outputs, self.data.shape[1] * self.group_size

    @property
    def nbytes(self) -> int:
        """Bytes held in memory, the last tile's padding among them."""
        return self.data.nbytes

    @property
    def device(self) -> torch.device:
        """Where the weight lies."""
        return self.data.device

    def to(self, device: torch.device | str) -> PackedInt4:
        """The same weight on another device."""
        return PackedInt4(self.data.to(device), self.outputs, self.group_size, self.form)


def pack(weight: Int4Weight) -> PackedInt4:
    """``weight`` in the kernels' order; a tensor-parallel shard is packed after it was cut (``rows``, ``cols``).

    Raises KernelArgumentError for what the kernels do not take: groups of other sizes than 32, 64 and 128, scales
    or weights that do not fit fp16, and zero points that are no whole numbers from 0 to 16.
    """
    _check(weight)
    (outputs, inputs), size = weight.shape, weight.group_size
    tiles, groups = -(-outputs // TILE), inputs // size
    columns = torch.tensor(LANE_COLUMN, device=weight.device)
    q = _whole_tiles(weight.unpack(), tiles)[:, columns]  # [tiles, lanes, K]
    words = _to_words(q.view(tiles, TILE, groups, size // CHUNK, CHUNK // PER_WORD, PER_WORD))
    scales = _whole_tiles(weight.groups, tiles)[:, columns].contiguous().view(torch.int32)  # [tiles, lanes, groups, 1]
    data = torch.cat((scales.permute(0, 2, 1, 3).flatten(2), words.permute(0, 2, 3, 1, 4).flatten(2)), dim=-1)
    return PackedInt4(data.contiguous(), outputs, size, weight.form)


def unpack(packed: PackedInt4) -> Int4Weight:
    """The inverse of ``pack``, bit for bit."""
    (outputs, _), size = packed.shape, packed.group_size
    tiles, groups, _ = packed.data.shape
    lanes = torch.tensor(LANE_COLUMN, device=packed.device).argsort()
    scales = packed.data[..., :TILE].contiguous().view(torch.float16).view(tiles, groups, TILE, 2)
    words = packed.data[..., TILE:].reshape(tiles, groups, size // CHUNK, TILE, CHUNK // PER_WORD)
    q = _from_words(words.permute(0, 3, 1, 2, 4)).flatten(2)[:, lanes].flatten(0, 1)
    pairs = scales.transpose(1, 2)[:, lanes].flatten(0, 1)
    return Int4Weight.from_nibbles(q[:outputs], pairs[:outputs].contiguous(), packed.form)


def _check(weight: Int4Weight) -> None:
    size = weight.group_size
    if size not in GROUP_SIZES:
        cure = "The SM70 kernels take groups of 32, 64 or 128 inputs."
        raise KernelArgumentError(f"The INT4 weight has groups of {size}.", cure=cure)
    if weight.groups.dtype != torch.float16:
        message = "The INT4 weight has scales that fp16 cannot hold."
        raise KernelArgumentError(message, cure="Use the executor torch for it, or dequantize it.")
    if weight.form == "scale_zero":
        zeros = weight.groups[..., 1]
        if not bool(((zeros >= 0) & (zeros <= LARGEST_ZERO) & (zeros == zeros.round())).all()):
            message = "The INT4 weight has zero points that are not whole numbers from 0 to 16."
            raise KernelArgumentError(message, cure="Use the executor torch for it, or the form scale_bias.")
    if _largest(weight) > torch.finfo(torch.float16).max:  # the tensor cores take weights in fp16
        message = "The INT4 weight has groups whose largest weights fp16 cannot hold."
        raise KernelArgumentError(message, cure="Use the executor torch for it, or dequantize it.")


def _largest(weight: Int4Weight) -> float:
    """The largest |w| that the nibbles 0 and 15 make of any group."""
    if not weight.groups.numel():
        return 0.0
    scale, other = weight.groups.float().unbind(-1)
    ends = (-scale * other, scale * (15 - other)) if weight.form == "scale_zero" else (other, 15 * scale + other)
    return max(end.abs().max().item() for end in ends)


def _whole_tiles(rows: Tensor, tiles: int) -> Tensor:
    """[N, ...] as [tiles, 32, ...], with rows of zeros at the end."""
    padded = rows.new_zeros(tiles * TILE, *rows.shape[1:])
    padded[: len(rows)] = rows
    return padded.view(tiles, TILE, *rows.shape[1:])


def _to_words(q: Tensor) -> Tensor:
    """uint8 [..., 8] in the order of K -> int32 [...]."""
    nibbles = to_nibble_order(q)
    return (nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)).contiguous().view(torch.int32).squeeze(-1)


def _from_words(words: Tensor) -> Tensor:
    """int32 [...] -> uint8 [..., 8] in the order of K."""
    octets = words.contiguous().unsqueeze(-1).view(torch.uint8)
    nibbles = torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)
    return from_nibble_order(nibbles)


def to_nibble_order(x: Tensor) -> Tensor:
    """[..., 8] by ``NIBBLE_INPUT``: even elements, then odd ones. Views alone: an index would be copied to a GPU."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def from_nibble_order(nibbles: Tensor) -> Tensor:
    """The inverse of ``to_nibble_order``."""
    return nibbles.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)

"""How keys and values are kept in pages: as they are, in INT8 or in INT4.

    INT8  symmetric, one half-precision scale per token and head:        x ~ q s,      q in -127 .. 127
    INT4  asymmetric, a pair of halves per 64 elements of a head:        x ~ q s + b,  q in 0 .. 15

Both keep |error| <= s / 2. Keys in INT4 are rotated by a Hadamard matrix first (after RoPE), and so are the queries:
q . k stays what it is, while a few large elements of a key spread over all of them (QuaRot, Ashkboos et al. 2024,
arXiv:2404.00456).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.errors import ConfigError
from labkit.quant.pack import PER_WORD, from_nibble_order, to_nibble_order

GROUP = 64  # elements of a head that share a pair of halves
FINEST_STEP = 2.0**-17  # below it a half has so few bits that a scale is off by more than a group can bear
LARGEST_HALF = 65504.0
# What INT4 keys are divided by where they become halves: the rotation can make an element sqrt(D) times as large as a
# half. A step and a minimum are halves, though, so no code stands for more than 15 + 1 times the largest. What is lost
# is 2^-21 of an element at most, besides its rounding: a 16th of the finest step.
INT4_KEY_UNIT = 16.0

BITS = {"auto": (16, 16), "fp16": (16, 16), "int8": (8, 8), "int4": (4, 4), "k8v4": (8, 4)}
"""Name of a KV cache dtype -> bits of K and of V; 16: not quantized."""


@dataclass(frozen=True)
class KVFormat:
    """What the pages of a model hold. dtype: of keys and values that are not quantized (bits 16)."""

    dtype: torch.dtype
    k_bits: int = 16
    v_bits: int = 16

    @classmethod
    def named(cls, name: str, model_dtype: torch.dtype) -> KVFormat:
        """auto: the model dtype; fp16, int8, int4; k8v4: keys in INT8, values in INT4. Raises ConfigError."""
        if name not in BITS:
            raise ConfigError(f"kv_cache_dtype is {name!r}.", cure=f"Choose one of {', '.join(BITS)}.")
        return cls(torch.float16 if name == "fp16" else model_dtype, *BITS[name])

    @property
    def name(self) -> str:
        """The shortest name of these bits; "auto" where nothing is quantized."""
        return next(name for name, bits in BITS.items() if bits == (self.k_bits, self.v_bits))

    @property
    def label(self) -> str:
        """For reports: the dtype of pages that are not quantized, else the name."""
        return str(self.dtype).removeprefix("torch.") if self.name == "auto" else self.name

    @property
    def rotates(self) -> bool:
        """Whether keys, and so queries, are rotated by a Hadamard matrix."""
        return self.k_bits == 4

    def bytes_per_head(self, head_dim: int) -> int:
        """Bytes of one token's K and V in one KV head, scales included."""
        return sum(self._bytes(bits, head_dim) for bits in (self.k_bits, self.v_bits))

    def _bytes(self, bits: int, head_dim: int) -> int:
        if bits == 16:
            return head_dim * self.dtype.itemsize
        return head_dim * bits // 8 + (2 if bits == 8 else 4 * (head_dim // group_size(head_dim)))


def group_size(head_dim: int) -> int:
    """Elements of a head that share a pair in INT4: 64, or the largest power of two that divides a smaller head.

    Raises ConfigError where eight elements do not fill words.
    """
    if head_dim % PER_WORD:
        cure = "Use fp16 or int8 pages for this model."
        raise ConfigError(f"INT4 pages hold heads of a multiple of {PER_WORD} elements, not {head_dim}.", cure=cure)
    return min(GROUP, head_dim & -head_dim)


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x: [..., D] -> (int8 [..., D], fp16 scale [...]), x ~ q * scale, |error| <= scale / 2 (plus its fp16 rounding).

    The division uses the scale as stored, so its rounding to half is not paid twice. Below 2^-17 a half has so few
    bits left that the largest element would no longer fit 127 steps: smaller rows keep that step.
    """
    peak = x.float().abs().amax(dim=-1)
    scale = _stored_step(peak / 127, torch.zeros_like(peak), 127)
    q = (x.float() / scale.float()[..., None]).round().clamp(-127, 127)
    return q.to(torch.int8), scale


def dequantize_int8(q: Tensor, scale: Tensor) -> Tensor:
    """The inverse: int8 [..., D], fp16 [...] -> fp32 [..., D]."""
    return q.float() * scale.float()[..., None]


def quantize_int4(x: Tensor) -> tuple[Tensor, Tensor]:
    """x: [..., D] -> (int32 words [..., D / 8], fp16 pairs (s, b) [..., D / 64, 2]), x ~ q s + b.

    b is the group's minimum, rounded down to a half, and s a 15th of the way from there to the maximum: every element
    then lies within half a step of a code. Only of rotated keys either may have to be larger than a half: elements
    below -65504 become that, and those more than 15 steps of 65504 above b the last code.
    Nibble p of a word holds element ``NIBBLE_INPUT[p]`` of its eight, as in packed weights. Raises ConfigError for a D
    that is no multiple of 8.
    """
    size = group_size(x.shape[-1])
    groups = x.float().unflatten(-1, (-1, size))
    low = _half_at_most(groups.amin(dim=-1))
    reach = groups.amax(dim=-1) - low.float()
    scale = _stored_step(reach / 15, low.float(), 15)
    q = ((groups - low.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 15)
    words = to_nibble_order(q.nan_to_num().to(torch.int32).flatten(-2).unflatten(-1, (-1, PER_WORD)))
    return (words << _shifts(x.device)).sum(-1, dtype=torch.int32), torch.stack((scale, low), dim=-1)


def dequantize_int4(words: Tensor, pairs: Tensor) -> Tensor:
    """The inverse: int32 [..., D / 8], fp16 [..., D / 64, 2] -> fp32 [..., D]."""
    q = from_nibble_order((words[..., None] >> _shifts(words.device)) & 15)
    scale, low = pairs.float()[..., None].unbind(-2)
    return (q.flatten(-2).unflatten(-1, (pairs.shape[-2], -1)).float() * scale + low).flatten(-2)


def hadamard(x: Tensor) -> Tensor:
    """x H / sqrt(n) in fp32 over the last dimension: an orthogonal matrix that is its own inverse.

    Sums and differences at distance 1, 2, 4, ... (the fast Walsh-Hadamard transform), then one factor. n is the
    largest power of two that divides D; a D of several times n turns in blocks of n.
    """
    dim = x.shape[-1]
    size = dim & -dim
    y, distance = x.float(), 1
    while distance < size:
        a, b = y.unflatten(-1, (-1, 2, distance)).unbind(-2)
        y, distance = torch.stack((a + b, a - b), dim=-2).flatten(-3), 2 * distance
    return y * (1 / math.sqrt(size))


def _stored_step(step: Tensor, low: Tensor, most: int) -> Tensor:
    """A step between codes as a half, not too fine to be exact, and rounded down where the last code passes a half.

    Rounded up, low + ``most`` steps of values that are halves could pass the largest, which whoever dequantizes to
    halves reads as infinity; like this they do not. Of larger values, such as rotated keys, the last code may: see
    INT4_KEY_UNIT.
    """
    nearest = step.clamp(min=FINEST_STEP, max=LARGEST_HALF).to(torch.float16)
    next_lower = (nearest.view(torch.int16) - 1).view(torch.float16)
    return torch.where(low + most * nearest.float() > LARGEST_HALF, next_lower, nearest)


def _half_at_most(x: Tensor) -> Tensor:
    """The largest half that is not above x; -65504 at least."""
    rounded = x.clamp(-LARGEST_HALF, LARGEST_HALF).to(torch.float16)
    bits = rounded.view(torch.int16)
    below = torch.where(bits > 0, bits - 1, torch.where(bits == 0, torch.full_like(bits, -0x7FFF), bits + 1))
    too_large = (rounded.float() > x) & (rounded > -LARGEST_HALF)
    return torch.where(too_large, below.view(torch.float16), rounded)


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(0, 4 * PER_WORD, 4, dtype=torch.int32, device=device)

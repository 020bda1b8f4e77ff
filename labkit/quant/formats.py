"""From the layouts found in files to ``Int4Weight``. Nothing is rounded on the way.

Sources: AutoAWQ's "gemm" packing; AutoGPTQ's; compressed-tensors' "pack-quantized"; the GGUF block layouts of ggml
(Q4_0, Q4_1, Q8_0). Words are little-endian, as all our targets: nibbles in order along K are ``Int4Weight``'s bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.quant.int4 import Int4Weight

# AutoAWQ "gemm": nibble p (bits 4p .. 4p + 3) of a 32-bit word holds output 8c + AWQ_ORDER[p].
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

BLOCK = 32  # weights per GGUF block
Q4_0_BYTES = 2 + BLOCK // 2  # half d, nibbles
Q4_1_BYTES = 4 + BLOCK // 2  # half d, half m, nibbles
Q8_0_BYTES = 2 + BLOCK  # half d, int8 values


def awq_to_int4(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Int4Weight:
    """AutoAWQ "gemm", ``w = (q - z) * s``.

    qweight: int32 ``[K, N // 8]``; qzeros: int32 ``[K // g, N // 8]``; scales: float16 or float32 ``[K // g, N]``.
    """
    zeros = torch.empty_like(scales)
    packed = torch.empty(scales.shape[1], qweight.shape[0] // 2, dtype=torch.uint8)
    for position, column in enumerate(AWQ_ORDER):
        q = _awq_nibble(qweight, position)
        packed[column::8] = (q[0::2] | (q[1::2] << 4)).T
        zeros[:, column::8] = _awq_nibble(qzeros, position).to(zeros.dtype)
    groups = torch.stack((scales.T, zeros.T), dim=-1)
    return Int4Weight(packed, groups.contiguous(), "scale_zero")


def _awq_nibble(words: Tensor, position: int) -> Tensor:
    """Nibble ``position`` of each little-endian word, as uint8."""
    byte = _octets(words)[:, position // 2 :: 4]
    return (byte >> 4) if position % 2 else (byte & 15)


def gptq_to_int4(qweight: Tensor, qzeros: Tensor, scales: Tensor, *, in_words: slice, zero_offset: int) -> Int4Weight:
    """GPTQ without act-order, ``w = (q - (v + zero_offset)) * s`` with v the stored zero point.

    qweight: int32 ``[K // 8, N]``, nibbles in order along K; qzeros: int32 ``[K // g, words]``, nibbles in order along
    N, of which ``in_words`` are the N wanted; scales: float16 or float32 ``[K // g, N]``. zero_offset: 0 or 1.
    """
    zeros = _nibbles(qzeros)[:, in_words].to(scales.dtype) + zero_offset
    groups = torch.stack((scales.T, zeros.T), dim=-1)
    return Int4Weight(_octets(qweight.T), groups.contiguous(), "scale_zero")


def packed_to_int4(packed: Tensor, scales: Tensor, zeros: Tensor | None, *, in_words: slice) -> Int4Weight:
    """compressed-tensors "pack-quantized", ``w = (q - z) * s``; q and z are both stored plus 8.

    packed: int32 ``[N, K // 8]``, nibbles in order along K; scales: float16 or float32 ``[N, K // g]``; zeros: int32
    ``[words, K // g]``, nibbles in order along N, of which ``in_words`` are the N wanted; None means symmetric, z = 8.
    """
    z = torch.full_like(scales, 8) if zeros is None else _nibbles(zeros.T).T[in_words].to(scales.dtype)
    return Int4Weight(_octets(packed), torch.stack((scales, z), dim=-1), "scale_zero")


def _octets(words: Tensor) -> Tensor:
    """int32 ``[R, C]`` as bytes ``[R, 4 C]``."""
    if not words.is_contiguous() or words.stride(-1) != 1:  # a single column counts as contiguous at any stride
        words = words.clone(memory_format=torch.contiguous_format)
    return words.view(torch.uint8)


def _nibbles(words: Tensor) -> Tensor:
    """int32 ``[R, C]`` as nibbles ``[R, 8 C]``, each a uint8."""
    octets = _octets(words)
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(1)


def q4_0_to_int4(blocks: Tensor) -> Int4Weight:
    """GGUF Q4_0 rows, uint8 ``[N, K // 32 * 18]``: ``w = (q - 8) * d``."""
    blocks = blocks.unflatten(1, (-1, Q4_0_BYTES))
    scale = _halves(blocks, 1)
    groups = torch.cat((scale, torch.full_like(scale, 8)), dim=-1)
    return Int4Weight(_interleave(blocks[..., 2:]), groups, "scale_zero")


def q4_1_to_int4(blocks: Tensor) -> Int4Weight:
    """GGUF Q4_1 rows, uint8 ``[N, K // 32 * 20]``: ``w = q * d + m``."""
    blocks = blocks.unflatten(1, (-1, Q4_1_BYTES))
    return Int4Weight(_interleave(blocks[..., 4:]), _halves(blocks, 2), "scale_bias")


def q8_0_to_float(blocks: Tensor) -> Tensor:
    """GGUF Q8_0 rows, uint8 ``[N, K // 32 * 34]``, as float32 ``[N, K]``: ``w = q * d``."""
    blocks = blocks.unflatten(1, (-1, Q8_0_BYTES))
    q = blocks[..., 2:].contiguous().view(torch.int8)
    return (q.float() * _halves(blocks, 1)).flatten(1)


def _halves(blocks: Tensor, count: int) -> Tensor:
    """The float16 numbers at the head of each block: ``[N, blocks, count]``."""
    return blocks[..., : 2 * count].contiguous().view(torch.float16)


def _interleave(nibbles: Tensor) -> Tensor:
    """A GGUF block keeps elements 0..15 in the low nibbles and 16..31 in the high ones; neighbours are wanted."""
    even, odd = nibbles[..., 0::2], nibbles[..., 1::2]
    low = (even & 15) | (odd << 4)
    high = (even >> 4) | (odd & 0xF0)
    return torch.cat((low, high), dim=-1).flatten(1)

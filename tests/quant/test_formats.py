"""From file layouts to Int4Weight, against packers written from the published layouts."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from helpers.gptq_files import AS_IS, MINUS_ONE, gptq_module, int32, nibble_words
from helpers.packers import awq_triplet, awq_words, dequantize_rows

from labkit.quant.formats import (
    awq_to_int4,
    gptq_to_int4,
    packed_to_int4,
    q4_0_to_int4,
    q4_1_to_int4,
    q8_0_to_float,
)
from labkit.quant.int4 import Int4Weight

Q = gguf.GGMLQuantizationType
Convert = Callable[[torch.Tensor], Int4Weight]


@pytest.fixture(params=range(3))
def rng(request: pytest.FixtureRequest, seed: int) -> np.random.Generator:
    return np.random.default_rng([request.param, seed])


@pytest.mark.parametrize(("rows", "groups", "size"), [(8, 1, 2), (24, 3, 32), (16, 2, 64), (40, 1, 128)])
def test_awq(rng: np.random.Generator, rows: int, groups: int, size: int) -> None:
    q = rng.integers(0, 16, (rows, groups * size))
    zero = rng.integers(0, 16, (rows, groups))
    scale = rng.uniform(1e-4, 1, (rows, groups)).astype(np.float16)
    weight = awq_to_int4(**awq_triplet(q, zero, scale))
    assert weight.form == "scale_zero" and weight.group_size == size
    assert np.array_equal(weight.unpack().numpy(), q)
    assert np.array_equal(weight.groups[..., 0].numpy(), scale)
    assert np.array_equal(weight.groups[..., 1].numpy(), zero)
    assert torch.equal(weight.dequantize(), dequantize_rows(q, zero, scale))


def test_awq_word_by_hand() -> None:
    """The order in which AutoAWQ packs eight outputs: nibbles 0..7 hold outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    word = awq_words(np.arange(8)[None])
    assert np.uint32(word.item() & 0xFFFFFFFF) == 0x75316420
    weight = awq_to_int4(torch.cat([word, word]), torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 8).half())
    assert weight.dequantize().tolist() == [[float(i)] * 2 for i in range(8)]


def test_the_packer_agrees_with_packing_by_position(rng: np.random.Generator) -> None:
    """AutoAWQ's own way round: position p of a word takes output AWQ_ORDER[p]; ours says where output j goes."""
    q = rng.integers(0, 16, (3, 16))
    expected = np.zeros((3, 2), np.int64)
    for word in range(2):
        for position, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            expected[:, word] += q[:, 8 * word + column] << (4 * position)
    assert np.array_equal(awq_words(q).numpy().view(np.uint32), expected)


def test_awq_keeps_wide_scales() -> None:
    parts = awq_triplet(np.full((8, 2), 9), np.full((8, 1), 3), np.ones((8, 1), np.float16))
    parts["scales"] = torch.full((1, 8), 1e-8)
    weight = awq_to_int4(**parts)
    assert weight.groups.dtype == torch.float32
    assert torch.equal(weight.dequantize(), torch.full((8, 2), 6.0) * 1e-8)


ALONG_K = [(1, 1, 8, slice(0, 1)), (24, 3, 32, slice(0, 24)), (5, 2, 64, slice(3, 8)), (7, 1, 128, slice(7, 14))]


@pytest.mark.parametrize(("rows", "groups", "size", "in_words"), ALONG_K)
@pytest.mark.parametrize(("written", "offset"), [(MINUS_ONE, 1), (AS_IS, 0)])
def test_gptq(
    rng: np.random.Generator, rows: int, groups: int, size: int, in_words: slice, written: str, offset: int
) -> None:
    """in_words: the words of zero points may begin before the outputs wanted and end after them."""
    q = rng.integers(0, 16, (rows, groups * size))
    zero = rng.integers(offset, 16 + offset, (rows, groups))
    scale = rng.uniform(-1, 1, (rows, groups)).astype(np.float16)
    around = rng.integers(offset, 16 + offset, (in_words.stop + 3, groups))
    around[in_words] = zero
    fields = gptq_module(q, zero, scale, order=False)
    fields["qzeros"] = gptq_module(np.zeros((len(around), 8 * groups), int), around, scale, written)["qzeros"]
    weight = gptq_to_int4(**fields, in_words=in_words, zero_offset=offset)
    assert weight.form == "scale_zero" and np.array_equal(weight.unpack().numpy(), q)
    assert np.array_equal(weight.groups[..., 1].numpy(), zero)
    assert torch.equal(weight.dequantize(), dequantize_rows(q, zero, scale))


@pytest.mark.parametrize(("rows", "groups", "size", "in_words"), ALONG_K)
@pytest.mark.parametrize("symmetric", [True, False])
def test_pack_quantized(
    rng: np.random.Generator, rows: int, groups: int, size: int, in_words: slice, symmetric: bool
) -> None:
    q, zero = rng.integers(0, 16, (rows, groups * size)), rng.integers(0, 16, (rows, groups))
    scale = rng.uniform(-1, 1, (rows, groups)).astype(np.float16)
    around = rng.integers(0, 16, (in_words.stop + 3, groups))
    around[in_words] = zero = np.full_like(zero, 8) if symmetric else zero
    zeros = None if symmetric else int32(nibble_words(around.T).T)
    weight = packed_to_int4(int32(nibble_words(q)), torch.from_numpy(scale), zeros, in_words=in_words)
    assert weight.form == "scale_zero" and np.array_equal(weight.unpack().numpy(), q)
    assert torch.equal(weight.dequantize(), dequantize_rows(q, zero, scale))


@pytest.mark.parametrize(("kind", "convert"), [(Q.Q4_0, q4_0_to_int4), (Q.Q4_1, q4_1_to_int4)])
def test_gguf_int4_loses_nothing(rng: np.random.Generator, kind: gguf.GGMLQuantizationType, convert: Convert) -> None:
    dense = rng.normal(size=(rng.integers(1, 9), 32 * rng.integers(1, 5))).astype(np.float32)
    blocks = gguf.quants.quantize(dense, kind)
    weight = convert(torch.from_numpy(blocks))
    assert weight.group_size == 32 and weight.groups.dtype == torch.float16
    assert np.array_equal(weight.dequantize().numpy(), gguf.quants.dequantize(blocks, kind))


@pytest.mark.parametrize(("size", "convert"), [(18, q4_0_to_int4), (20, q4_1_to_int4)])
def test_gguf_every_bit_pattern(rng: np.random.Generator, size: int, convert: Convert) -> None:
    """Not only what a quantizer writes: random nibbles and random finite halves."""
    blocks = rng.integers(0, 256, (6, 4, size), dtype=np.uint8)
    head = rng.normal(size=(6, 4, size // 2 - 8)).astype(np.float16)
    blocks[..., : size - 16] = head.view(np.uint8).reshape(6, 4, -1)
    flat = blocks.reshape(6, -1)
    expected = gguf.quants.dequantize(flat, Q.Q4_0 if size == 18 else Q.Q4_1)
    assert np.array_equal(convert(torch.from_numpy(flat)).dequantize().numpy(), expected)


def test_q8_0(rng: np.random.Generator) -> None:
    dense = rng.normal(size=(5, 96)).astype(np.float32)
    blocks = gguf.quants.quantize(dense, Q.Q8_0)
    assert np.array_equal(q8_0_to_float(torch.from_numpy(blocks)).numpy(), gguf.quants.dequantize(blocks, Q.Q8_0))

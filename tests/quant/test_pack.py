"""The order of the SM70 kernels: an exact inverse, every nibble where a formula of its own puts it, typed errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import KernelArgumentError
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.pack import (
    GROUP_SIZES,
    NIBBLE_INPUT,
    PackedInt4,
    from_nibble_order,
    pack,
    to_nibble_order,
    unpack,
)

FORMS: tuple[Form, Form] = ("scale_zero", "scale_bias")


def draw(rows: int, groups: int, size: int, form: Form = "scale_zero") -> Int4Weight:
    """Random nibbles; scales of either sign; zero points 0..16, or biases."""
    q = torch.randint(0, 16, (rows, groups * size), dtype=torch.uint8)
    zero = torch.randint(0, 17, (rows, groups)).half()
    other = zero if form == "scale_zero" else torch.randn(rows, groups).half()
    return Int4Weight.from_nibbles(q, torch.stack((torch.randn(rows, groups).half(), other), -1), form)


def assert_equal(a: Int4Weight, b: Int4Weight) -> None:
    assert a.form == b.form and torch.equal(a.packed, b.packed) and torch.equal(a.groups, b.groups)


shapes = (st.integers(1, 100), st.integers(1, 5), st.sampled_from(GROUP_SIZES), st.sampled_from(FORMS))


@settings(max_examples=60, deadline=None)
@given(*shapes, st.integers(0, 2**31))
def test_unpack_is_the_exact_inverse(rows: int, groups: int, size: int, form: Form, seed: int) -> None:
    torch.manual_seed(seed)
    weight = draw(rows, groups, size, form)
    packed = pack(weight)
    assert (packed.shape, packed.group_size, packed.form) == (weight.shape, size, form)
    assert packed.data.shape == (-(-rows // 32), groups, 32 + 4 * size) and packed.data.is_contiguous()
    assert packed.nbytes == packed.data.nbytes and packed.device == weight.device
    assert_equal(unpack(packed), weight)
    assert_equal(unpack(packed.to("cpu")), weight)


def place(output: int, element: int, size: int) -> tuple[int, int, int, int]:
    """(tile, group, word, lowest bit) of a nibble. Eight outputs belong to a quad-pair, lanes 4q..4q+3 and 16 more."""
    column, inside = output % 32, element % size
    lane = 4 * (column // 8) + column % 4 + (16 if column % 8 >= 4 else 0)
    word = 32 + 128 * (inside // 32) + 4 * lane + inside % 32 // 8
    position = inside % 8 // 2 + (4 if inside % 2 else 0)
    return output // 32, element // size, word, 4 * position


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("size", GROUP_SIZES)
@pytest.mark.parametrize("rows", [7, 32, 40])
def test_where_each_nibble_goes(size: int, rows: int) -> None:
    weight = draw(rows, 2, size)
    data, q = pack(weight).data.numpy().view("uint32"), weight.unpack()
    taken = set()
    for output in range(rows):
        for element in range(2 * size):
            tile, group, word, bit = place(output, element, size)
            assert int(data[tile, group, word]) >> bit & 15 == q[output, element]
            taken.add((tile, group, word, bit))
    assert len(taken) == rows * 2 * size


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("size", GROUP_SIZES)
def test_where_each_scale_goes(size: int) -> None:
    """The half2 of a group at the lane's word: the scale low, the zero point high."""
    weight = draw(40, 3, size)
    words = pack(weight).data[..., :32].contiguous().view(torch.float16).unflatten(-1, (32, 2))
    for output in range(40):
        _, _, word, _ = place(output, 0, size)
        assert torch.equal(words[output // 32, :, (word - 32) // 4], weight.groups[output])


@pytest.mark.usefixtures("seed")
def test_what_fills_the_last_tile_counts_for_nothing() -> None:
    packed = pack(draw(33, 2, 64))
    whole = unpack(PackedInt4(packed.data, 64, 64, packed.form))
    assert torch.equal(whole.dequantize()[33:], torch.zeros(31, 128))
    assert not whole.packed[33:].any() and not whole.groups[33:].any()


@settings(max_examples=40, deadline=None)
@given(*shapes, st.data(), st.integers(0, 2**31))
def test_shards(rows: int, groups: int, size: int, form: Form, data: st.DataObject, seed: int) -> None:
    """A shard of outputs, of inputs, or of both is packed as if it were a weight of its own."""
    torch.manual_seed(seed)
    weight = draw(rows, groups, size, form)
    first, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, groups - 1))
    part = slice(first, data.draw(st.integers(first + 1, rows)))
    cols = slice(left * size, data.draw(st.integers(left + 1, groups)) * size)
    shard = weight.rows(part).cols(cols)
    packed = pack(shard)
    assert packed.shape == shard.shape
    assert torch.equal(unpack(packed).dequantize(), weight.dequantize()[part, cols])


@pytest.mark.usefixtures("seed")
def test_joined_blocks() -> None:
    """The q, k and v blocks of one rank, cut from one matrix, are one weight again."""
    weight = draw(40, 2, 32)
    blocks = [slice(0, 5), slice(10, 15), slice(20, 30)]
    joined = Int4Weight.cat([weight.rows(block) for block in blocks])
    expected = torch.cat([weight.dequantize()[block] for block in blocks])
    assert torch.equal(unpack(pack(joined)).dequantize(), expected)


@pytest.mark.parametrize("size", [2, 16, 96, 256])
def test_other_group_sizes(size: int) -> None:
    with pytest.raises(KernelArgumentError, match=f"groups of {size}") as caught:
        pack(draw(8, 2, size))
    assert "32, 64 or 128" in caught.value.cure


@pytest.mark.parametrize("form", FORMS)
def test_wide_scales(form: Form) -> None:
    weight = draw(8, 2, 32, form)
    wide = Int4Weight(weight.packed, weight.groups.float(), form)
    with pytest.raises(KernelArgumentError, match="scales that fp16 cannot hold") as caught:
        pack(wide)
    assert caught.value.cure


@pytest.mark.parametrize("zero", [-1.0, 7.5, 17.0, float("nan"), float("inf")])
def test_zero_points_that_are_none(zero: float) -> None:
    weight = draw(8, 2, 32)
    weight.groups[3, 1, 1] = zero
    with pytest.raises(KernelArgumentError, match="zero points") as caught:
        pack(weight)
    assert caught.value.cure


def test_any_bias_will_do() -> None:
    weight = draw(8, 2, 32, "scale_bias")
    weight.groups[3, 1, 1] = -7.25
    assert_equal(unpack(pack(weight)), weight)


def test_the_order_of_nibbles_and_its_inverse() -> None:
    x = torch.arange(48).view(2, 3, 8)
    assert torch.equal(to_nibble_order(x), x[..., list(NIBBLE_INPUT)])
    assert torch.equal(from_nibble_order(to_nibble_order(x)), x)

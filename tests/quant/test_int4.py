"""The one INT4 format: packing, arithmetic, slicing and joining."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.quant import int4
from labkit.quant.int4 import Int4Weight


def draw(rows: int, groups: int, size: int, form: int4.Form, dtype: torch.dtype = torch.float16) -> Int4Weight:
    q = torch.randint(0, 16, (rows, groups * size), dtype=torch.uint8)
    scale, other = torch.rand(rows, groups) + 0.1, torch.randint(0, 16, (rows, groups)).float()
    if form == "scale_bias":
        other = torch.randn(rows, groups)
    return Int4Weight.from_nibbles(q, torch.stack((scale, other), -1).to(dtype), form)


def formula(weight: Int4Weight) -> torch.Tensor:
    """The definition in fp64, group by group."""
    q = weight.unpack().double()
    out = torch.empty_like(q)
    size = weight.group_size
    for group in range(weight.groups.shape[1]):
        part = slice(group * size, (group + 1) * size)
        scale, other = weight.groups[:, group].double().split(1, -1)
        out[:, part] = (q[:, part] - other) * scale if weight.form == "scale_zero" else q[:, part] * scale + other
    return out


forms = st.sampled_from(["scale_zero", "scale_bias"])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 5), st.sampled_from([2, 6, 32, 64, 128]), forms, st.integers(0, 2**31))
def test_dequantize_is_the_formula(rows: int, groups: int, size: int, form: int4.Form, seed: int) -> None:
    torch.manual_seed(seed)
    weight = draw(rows, groups, size, form)
    expected = formula(weight)
    assert weight.shape == (rows, groups * size) and weight.group_size == size
    torch.testing.assert_close(weight.dequantize(), expected.float(), rtol=1e-6, atol=1e-6)
    half = torch.full(weight.shape, torch.nan, dtype=torch.bfloat16)
    assert weight.dequantize(out=half) is half
    assert torch.equal(half, weight.dequantize().bfloat16())
    assert torch.equal(weight.dequantize(torch.float16), weight.dequantize().half())


@pytest.mark.usefixtures("seed")
def test_tiles_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = draw(37, 3, 32, "scale_bias")
    whole = weight.dequantize()
    for tile in (1, 96 * 5, 96 * 36):
        monkeypatch.setattr(int4, "TILE", tile)
        assert torch.equal(weight.dequantize(), whole)


def test_nibble_order_is_low_then_high() -> None:
    q = torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8)
    weight = Int4Weight.from_nibbles(q, torch.tensor([[[1.0, 0.0]]], dtype=torch.float16), "scale_zero")
    assert weight.packed.tolist() == [[0x21, 0x43]]
    assert torch.equal(weight.unpack(), q)


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("form", ["scale_zero", "scale_bias"])
def test_slices_and_permutations_commute_with_dequantize(form: int4.Form) -> None:
    weight = draw(24, 4, 32, form)
    dense = weight.dequantize()
    order = torch.randperm(24)
    assert torch.equal(weight.rows(slice(3, 17)).dequantize(), dense[3:17])
    assert torch.equal(weight.cols(slice(32, 96)).dequantize(), dense[:, 32:96])
    assert torch.equal(weight.cols(slice(64, None)).rows(slice(5, 9)).dequantize(), dense[5:9, 64:])
    assert torch.equal(weight.permute_rows(order).dequantize(), dense[order])


@pytest.mark.parametrize("cols", [slice(1, 33), slice(0, 31), slice(32, 32), slice(0, 64, 2)])
def test_columns_must_keep_groups_whole(cols: slice) -> None:
    with pytest.raises(ValueError, match="groups of 32"):
        draw(2, 2, 32, "scale_zero").cols(cols)


@pytest.mark.usefixtures("seed")
def test_cat_joins_outputs() -> None:
    parts = [draw(rows, 2, 32, "scale_zero") for rows in (3, 1, 8)]
    joined = Int4Weight.cat(parts)
    assert torch.equal(joined.dequantize(), torch.cat([part.dequantize() for part in parts]))


def test_cat_keeps_wide_groups_wide() -> None:
    narrow, wide = draw(2, 1, 32, "scale_zero"), draw(3, 1, 32, "scale_zero", torch.float32)
    joined = Int4Weight.cat([narrow, wide])
    assert joined.groups.dtype == torch.float32
    assert torch.equal(joined.dequantize(), torch.cat([narrow.dequantize(), wide.dequantize()]))


@pytest.mark.parametrize(
    "other", [draw(2, 1, 64, "scale_bias"), draw(2, 2, 32, "scale_zero"), draw(2, 4, 32, "scale_bias")]
)
def test_cat_refuses_different_kinds(other: Int4Weight) -> None:
    mine = draw(2, 2, 32, "scale_bias")
    assert not Int4Weight.can_cat([mine, other])
    with pytest.raises(ValueError, match="cannot be joined"):
        Int4Weight.cat([mine, other])


def test_nbytes_counts_nibbles_and_groups() -> None:
    assert draw(8, 2, 32, "scale_zero").nbytes == 8 * 64 // 2 + 8 * 2 * 2 * 2


@pytest.mark.parametrize(
    ("packed", "groups"),
    [
        (torch.zeros(4, 16, dtype=torch.int32), torch.zeros(4, 1, 2).half()),
        (torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 1, 2).bfloat16()),
        (torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(3, 1, 2).half()),
        (torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 1, 3).half()),
        (torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 3, 2).half()),
        (torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 32, 2).half()),
        (torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 0, 2).half()),
    ],
)
def test_parts_that_do_not_belong_together(packed: torch.Tensor, groups: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"match|divide|needs"):
        Int4Weight(packed, groups, "scale_zero")


def test_workspace_must_fit() -> None:
    weight = draw(4, 1, 32, "scale_zero")
    for workspace in (torch.empty(4, 31), torch.empty(32, 4).T):
        with pytest.raises(ValueError, match="workspace"):
            weight.dequantize(out=workspace)

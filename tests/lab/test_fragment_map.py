"""The picture of the fragments says what the instruction does, for every lane and both ways to tile a warp."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from helpers.drawings import boxes, root_of, texts

from labkit.lab.drawing import WARNING
from labkit.lab.fragment_map import TILINGS, fragment_map, lane_elements
from labkit.quant.pack import LANE_COLUMN
from labkit.sim import run

ONE_MMA = r"""
extern "C" __global__ void one_mma(const unsigned* a, const unsigned* b, float* c) {
    const int lane = threadIdx.x;
    float d[8] = {};
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[2 * lane]), "r"(a[2 * lane + 1]), "r"(b[2 * lane]), "r"(b[2 * lane + 1]));
    for (int i = 0; i < 8; i++) c[8 * lane + i] = d[i];
}"""
SHAPES = {"2x2": (16, 16), "1x4": (8, 32)}


@pytest.mark.parametrize("tiling", TILINGS)
def test_operands_laid_out_so_give_the_product(tiling: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows, columns = SHAPES[tiling]
    a, b = (torch.randn(*shape, generator=draw).half() for shape in ((rows, 4), (4, columns)))
    held = [
        torch.stack([matrix[place] for lane in range(32) for place in lane_elements(name, lane, tiling)])
        for name, matrix in (("A", a), ("B", b))
    ]
    registers = torch.zeros(32, 8)
    assert run(ONE_MMA, "one_mma", grid=1, block=32, args=[*(each.view(torch.int32) for each in held), registers]).ok
    c = torch.full((rows, columns), torch.nan)
    for lane, i in product(range(32), range(8)):
        c[lane_elements("C", lane, tiling)[i]] = registers[lane, i]
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tiling", "share_a", "share_b"), [("2x2", 2, 2), ("1x4", 4, 1)])
def test_how_many_lanes_share_an_operand(tiling: str, share_a: int, share_b: int) -> None:
    rows, columns = SHAPES[tiling]
    for name, size, share in (("A", 4 * rows, share_a), ("B", 4 * columns, share_b), ("C", rows * columns, 1)):
        places = [place for lane in range(32) for place in lane_elements(name, lane, tiling)]
        assert len(set(places)) == size and {places.count(place) for place in places} == {share}


def test_the_packed_weights_lie_as_the_tiling_along_n_wants_them() -> None:
    assert tuple(lane_elements("B", lane, "1x4")[0][1] for lane in range(32)) == LANE_COLUMN


@pytest.mark.parametrize("tiling", TILINGS)
def test_the_picture_marks_the_registers_of_a_lane(tiling: str) -> None:
    picture = fragment_map(tiling, lane=21)
    root = root_of(picture)
    assert len(boxes(root, WARNING)) == 6  # one of A, one of B, four of C
    assert {"a0 a1 a2 a3", "b0", "b3", "c0 c1", "c2 c3", "c4 c5", "c6 c7"} <= set(texts(root))
    row, column = lane_elements("A", 21, tiling)[0][0], lane_elements("B", 21, tiling)[0][1]
    assert f"lane 21 holds A [{row}][0..3], B [0..3][{column}], C rows" in picture.alt


@pytest.mark.parametrize("tiling", TILINGS)
def test_the_text_names_the_lane_of_each_element(tiling: str) -> None:
    picture = fragment_map(tiling)
    assert not boxes(root_of(picture), WARNING)
    rows, columns = SHAPES[tiling]
    table = [line.split() for line in picture.text.splitlines() if line.startswith("A ")]
    assert len(table) == rows
    sharers = [line.split()[1:] for line in picture.text.splitlines() if line.startswith("B ")]
    for lane in range(32):
        assert sum(lanes[lane_elements("B", lane, tiling)[0][1]] == str(lane) for lanes in sharers) == 1
        for row, column in lane_elements("C", lane, tiling):
            assert table[row][-columns // 2 :][column // 2] == str(lane)
        assert str(lane) in table[lane_elements("A", lane, tiling)[0][0]][1 : -columns // 2]


def test_lanes_that_hold_the_same_stand_in_one_box() -> None:
    square, row = (set(texts(root_of(fragment_map(tiling)))) for tiling in ("2x2", "1x4"))
    assert {"0 8", "23 31"} <= square and {"0 4 8 12", "19 23 27 31"} <= row


@pytest.mark.parametrize("arguments", [("D", 0, "2x2"), ("A", 32, "2x2"), ("A", 0, "4x1")])
def test_what_is_no_operand_lane_or_tiling_is_refused(arguments: tuple[str, int, str]) -> None:
    with pytest.raises(ValueError, match="no operand"):
        lane_elements(*arguments)

"""The picture of the nibbles says what ``pack`` does, and marks the one that was asked for."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import boxes, root_of, texts

from labkit.lab.drawing import BLOCKS, FETCHED, WARNING
from labkit.lab.nibble_map import CELL, LEFT, nibble_map, nibble_place
from labkit.quant.int4 import Int4Weight
from labkit.quant.pack import GROUP_SIZES, LANE_COLUMN, pack


def packed_bit(output: int, k: int, outputs: int, inputs: int, group_size: int) -> tuple[int, ...]:
    """(tile, group, word, nibble) of the only number of a weight that is not 0, as ``pack`` lays it."""
    q = torch.zeros(outputs, inputs, dtype=torch.uint8)
    q[output, k] = 15
    groups = torch.zeros(outputs, inputs // group_size, 2, dtype=torch.float16)
    data = pack(Int4Weight.from_nibbles(q, groups, "scale_zero")).data
    [[tile, group, word]] = data.nonzero().tolist()
    return tile, group, word, [int(data[tile, group, word]) >> 4 * i & 15 for i in range(8)].index(15)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_places_are_those_of_pack(group_size: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    outputs, inputs = 70, 3 * group_size
    for _ in range(20):
        output, k = (int(torch.randint(n, (1,), generator=draw)) for n in (outputs, inputs))
        place = nibble_place(output, k, group_size)
        found = (place.tile, place.group, place.word, place.nibble)
        assert found == packed_bit(output, k, outputs, inputs, group_size), (output, k)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_the_lane_and_its_scale_are_those_of_pack(group_size: int) -> None:
    groups = torch.zeros(64, 2, 2, dtype=torch.float16)
    groups[45, 1] = torch.tensor([3.0, 5.0])
    q = torch.zeros(64, 2 * group_size, dtype=torch.uint8)
    data = pack(Int4Weight.from_nibbles(q, groups, "scale_zero")).data
    place = nibble_place(45, group_size, group_size)
    assert data.nonzero().tolist() == [[place.tile, place.group, place.lane]]
    assert place.first_word <= place.word < place.first_word + 4


def test_the_picture_marks_the_way_to_the_nibble() -> None:
    picture = nibble_map(37, 70)
    root = root_of(picture)
    assert len(boxes(root, WARNING)) == 4  # output, chunk, lane, nibble
    assert {"37", "70", "chunk 2: words 288 to 415", "word 356"} <= set(texts(root))
    assert "lane 17, chunk 2, word 356, bits 12 to 15" in picture.alt
    assert "  [70]" in picture.text.splitlines()[3] and picture.text.count("[") == 1


def test_below_each_output_stands_its_lane() -> None:
    root = root_of(nibble_map(64, 0))
    lanes = []
    for column in range(32):
        output, lane = root.findall(f".//*[@x='{LEFT + CELL * (column + 0.5):g}'][@dy]")[:2]
        assert output.text == str(64 + column)
        lanes.append(int(lane.text or ""))
        mine = boxes(root, WARNING if column == 0 else BLOCKS[lanes[-1] // 4 % 4])
        assert any(float(each.attrib["x"]) == LEFT + CELL * column for each in mine)
    assert [LANE_COLUMN[lane] for lane in lanes] == list(range(32))


def test_the_order_of_inputs_is_that_of_the_packed_word() -> None:
    """Eight different numbers in a word: the picture lists its inputs as the hexadecimal digits of the word."""
    q = torch.zeros(32, 32, dtype=torch.uint8)
    q[6, 8:16] = torch.arange(8)
    data = pack(Int4Weight.from_nibbles(q, torch.zeros(32, 1, 2, dtype=torch.float16), "scale_zero")).data
    place = nibble_place(6, 8, 32)
    digits = [int(digit, 16) for digit in f"{int(data[0, 0, place.word]) & 0xFFFFFFFF:08x}"]
    line = next(row for row in nibble_map(6, 0, 32).text.splitlines() if row.startswith(f"word {place.word} "))
    assert [int(k) - 8 for k in line.split()[2:]] == digits


def test_the_rest_of_the_lane_is_marked_on_demand() -> None:
    assert len(boxes(root_of(nibble_map(3, 100, 32, whole_lane=True)), FETCHED)) == 31
    assert not boxes(root_of(nibble_map(3, 100, 32)), FETCHED)


@pytest.mark.parametrize(
    ("place", "problem"), [((0, 0, 48), "not 48"), ((-1, 0, 32), "not -1"), ((0, -7, 32), "not -7")]
)
def test_what_is_no_place_is_refused(place: tuple[int, int, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        nibble_map(*place)

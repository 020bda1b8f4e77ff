"""The memory strip counts sectors as arithmetic does, and shows each lane where it reaches."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.drawings import boxes, root_of, texts

from labkit.lab.access_strip import LEGEND, Request, access_strip
from labkit.lab.drawing import USED

LANES = np.arange(32)


def request_of(offsets: np.ndarray, nbytes: int) -> Request:
    return Request(tuple(range(len(offsets))), tuple(offsets.tolist()), nbytes)


@pytest.mark.parametrize(
    ("offsets", "nbytes", "sectors", "efficiency"),
    [
        (4 * LANES, 4, 4, 1.0),
        (4 * LANES[::-1], 4, 4, 1.0),
        (4 * (LANES ^ 1), 4, 4, 1.0),
        (8 * LANES, 4, 8, 0.5),
        (32 * LANES, 4, 32, 0.125),
        (128 * LANES, 4, 32, 0.125),
        (4 * LANES + 4, 4, 5, 0.8),
        (16 * LANES, 16, 16, 1.0),
        (16 * LANES, 4, 16, 0.25),
        (2 * LANES, 2, 2, 1.0),
        (0 * LANES, 4, 1, 0.125),
    ],
)
def test_sectors_of_textbook_patterns(offsets: np.ndarray, nbytes: int, sectors: int, efficiency: float) -> None:
    request = request_of(offsets, nbytes)
    assert (request.sectors, request.efficiency) == (sectors, efficiency)


def test_sectors_of_random_gathers(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for nbytes in (1, 2, 4, 8, 16):
        offsets = nbytes * draw.integers(0, 500, draw.integers(1, 33))
        touched = np.zeros(500 * 16, bool)
        for offset in offsets:
            touched[offset : offset + nbytes] = True
        request = request_of(offsets, nbytes)
        assert request.sectors == touched.reshape(-1, 32).any(axis=1).sum()
        assert request.wanted == touched.sum()
        root_of(access_strip(offsets, nbytes))


def test_every_lane_has_its_box() -> None:
    root = root_of(access_strip(8 * LANES, 4, title="line 3"))
    legend = 1
    assert len(boxes(root, USED)) == 32 + legend
    assert {str(lane) for lane in LANES} <= set(texts(root))
    assert "line 3: 32 lanes want 128 bytes: 8 sectors of 32 bytes, 50% used" in texts(root)


def test_lanes_that_share_a_word_are_counted() -> None:
    assert "×32" in texts(root_of(access_strip(0 * LANES, 4)))


def test_text_shows_lanes_bytes_moved_in_vain_and_what_stays() -> None:
    assert repr(access_strip(np.array([4, 8, 8, 64]), 4)).splitlines() == [
        "4 lanes want 12 bytes: 2 sectors of 32 bytes, 18.8% used",
        "    +0 |.  0  1+ .  .  .  .  .  |                        |3  .  .  .  .  .  .  .  |                        |",
        LEGEND,
    ]


def test_far_lines_are_counted_instead_of_drawn() -> None:
    picture = access_strip(128 * LANES, 4)
    assert "... and 24 more lines" in picture.text and "... and 24 more lines" in texts(root_of(picture))
    assert "32 lines of 128 bytes" in picture.alt


def test_only_the_lanes_that_took_part_are_named() -> None:
    picture = access_strip([0, 4], 4, lanes=[5, 30])
    assert "|5  30 ." in picture.text and picture.text.startswith("2 lanes want 8 bytes")
    with pytest.raises(ValueError, match="2 lanes, but 1 offsets"):
        access_strip([0], 4, lanes=[1, 2])

"""The bank picture takes as many passes as the simulator counts cycles, and serves every lane once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.drawings import boxes, root_of

from labkit.lab.bank_strip import bank_passes, bank_strip
from labkit.lab.drawing import USED
from labkit.sim.banks import bank_cycles

LANES = np.arange(32)


@pytest.mark.parametrize(
    ("offsets", "nbytes", "passes"),
    [
        (4 * LANES, 4, 1),
        (0 * LANES, 4, 1),
        (8 * LANES, 4, 2),
        (128 * LANES, 4, 32),
        (132 * LANES, 4, 1),
        (8 * LANES, 8, 2),
        (16 * LANES, 16, 4),
        (2 * LANES, 2, 1),
    ],
)
def test_passes_of_textbook_patterns(offsets: np.ndarray, nbytes: int, passes: int) -> None:
    assert len(bank_passes(offsets, nbytes)) == passes


def test_passes_are_the_cycles_that_the_simulator_counts(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for nbytes in (4, 8, 16):
        for _ in range(10):
            offsets = nbytes * draw.integers(0, 400, 32)
            cycles, _ = bank_cycles(offsets.reshape(1, 32).astype(np.int64), nbytes)
            assert len(bank_passes(offsets, nbytes)) == cycles


def test_each_lane_gets_each_of_its_words_once(seed: int) -> None:
    draw = np.random.default_rng(seed)
    passes = bank_passes(8 * draw.integers(0, 400, 32), 8)
    served = Counter(lane for one in passes for lanes in one.values() for lane in lanes)
    assert served == dict.fromkeys(range(32), 2)


def test_the_picture_has_a_row_for_each_pass() -> None:
    picture = bank_strip(8 * LANES, title="stride 2")
    assert len(boxes(root_of(picture), USED)) == 32
    assert picture.text.splitlines()[0] == "stride 2: 2 passes, banks busy 50% of the time"
    assert picture.text.splitlines()[2].startswith("pass 1  0   .   1   .")
    assert picture.text.splitlines()[3].startswith("pass 2  16  .   17  .")


def test_long_texts_are_cut_and_say_so() -> None:
    assert bank_strip(128 * LANES).text.endswith("... and 24 more passes")
    assert "1 pass, banks busy 3% of the time" in bank_strip(0 * LANES).alt

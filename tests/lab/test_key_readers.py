"""The picture of who loads which keys tells what the rungs do, and refuses what it cannot show."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import boxes, root_of

from labkit.lab import key_readers as module
from labkit.lab.attention_run import AttentionRun, random_operands, run_rung
from labkit.lab.drawing import BLOCKS
from labkit.lab.key_readers import key_readers, readers_of, times_read


def traced(rung: str, length: int, heads: int = 6, *, trace: bool = True, kv_heads: int = 1) -> AttentionRun:
    torch.manual_seed(3)
    drawn = random_operands([length], heads=heads, kv_heads=kv_heads)
    return run_rung("attention_decode", rung, drawn, trace=trace)


def test_a_warp_per_head_reads_all_keys() -> None:
    readers = readers_of(traced("1_warp_per_head", 70))
    assert list(readers) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert all(tokens == list(range(70)) for tokens in readers.values())
    assert times_read(readers, 70) == 6


@pytest.mark.parametrize(("rung", "warps"), [("2_packed_group", 4), ("4_wide", 3)])
def test_a_group_reads_each_key_once(rung: str, warps: int) -> None:
    """Also where the last tile is not full, and pages stand in any order."""
    readers = readers_of(traced(rung, 70))
    assert len(readers) == warps
    assert sorted(token for tokens in readers.values() for token in tokens) == list(range(70))


def test_the_picture() -> None:
    picture = key_readers(traced("2_packed_group", 70), "packed")
    root = root_of(picture)
    assert sum(len(boxes(root, colour)) for colour in BLOCKS) == 70  # no warp has two neighbours
    assert picture.text.splitlines()[0] == "packed: 70 keys, 4 warps in 1 block: each key is loaded by 1 of them"
    marks = [line.split()[-1] for line in picture.text.splitlines()[2:]]
    assert marks[0] == ("#..." * 18)[:70] and len(marks) == 4


def test_neighbours_are_one_mark() -> None:
    root = root_of(key_readers(traced("1_warp_per_head", 70)))
    assert [len(boxes(root, colour)) for colour in BLOCKS] == [4, 2, 0, 0]


def test_what_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="trace=True"):
        readers_of(traced("2_packed_group", 10, trace=False))
    with pytest.raises(ValueError, match="2 KV heads"):
        readers_of(traced("2_packed_group", 10, kv_heads=2))
    monkeypatch.setattr(module, "LIMIT", 10)
    with pytest.raises(ValueError, match="fewer tokens"):
        readers_of(traced("2_packed_group", 10))

"""Which kernel a call runs on: the rules without a table, the table, and tables that cannot be used."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tuning import DATE, HALF, INT4, row, some_table

from labkit.errors import ConfigError
from labkit.ops import linear_candidates
from labkit.ops.tuning import NEWER_RULES, SIMULATED, V100_RULES, Place, choose, place_of, ranges, rule_for, table_for
from labkit.ops.tuning_table import CANDIDATES, TuningTable, WeightShape, load_table, store_table, table_path

V100, H200 = Place("Tesla V100-SXM2-16GB", (7, 0)), Place("NVIDIA H200", (9, 0))
INT8 = WeightShape("int8", 4096, 5120, 128)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    table_for.cache_clear()
    yield
    table_for.cache_clear()


def chosen(shape: WeightShape, place: Place, *rows: int) -> list[str]:
    return [choose(shape, count, place) for count in rows]


def test_names_of_candidates_are_those_that_can_run() -> None:
    assert {kind: set(names) for kind, names in CANDIDATES.items()} == {
        kind: set(names) for kind, names in linear_candidates.CANDIDATES.items()
    }


def test_every_number_of_rows_has_a_rule_that_takes_it() -> None:
    for rules in (V100_RULES, NEWER_RULES):
        for kind, candidates in CANDIDATES.items():
            ends = [rule.most_rows for rule in rules[kind]]
            assert ends[-1] is None and None not in ends[:-1] and sorted(ends[:-1]) == ends[:-1]
            for rule in rules[kind]:
                most = candidates[rule.candidate]
                assert most is None or (rule.most_rows is not None and rule.most_rows <= most)
                assert rule.reason


def test_a_v100_follows_the_published_figures() -> None:
    """And so does the simulator, which stands for one."""
    for place in (V100, SIMULATED, Place("Turing", (7, 5))):
        assert chosen(INT4, place, 1, 3) == ["awq_gemv"] * 2
        assert chosen(INT4, place, 4, 16) == ["awq_gemm/4_small_m"] * 2
        assert chosen(INT4, place, 17, 127) == ["awq_gemm/5_large_tile"] * 2
        assert chosen(INT4, place, 128, 4096, 100_000) == ["dequant_matmul"] * 3
    assert place_of(torch.device("cpu")) == SIMULATED


def test_newer_gpus_emulate_the_mma_and_go_to_the_library() -> None:
    assert chosen(INT4, H200, 1, 8, 9, 4096) == ["awq_gemv", "awq_gemv", "dequant_matmul", "dequant_matmul"]


@pytest.mark.parametrize("place", [V100, H200])
def test_other_weights(place: Place) -> None:
    few = "gemv_half" if place is V100 else "matmul"  # a newer library has the better kernel from 3 rows on
    assert chosen(HALF, place, 1, 2, 8, 9) == ["gemv_half", "gemv_half", few, "matmul"]
    assert chosen(INT8, place, 1, 8, 9) == ["gemv_int8", "gemv_int8", "dequant_matmul"]


def test_a_table_decides_for_the_shapes_that_it_knows() -> None:
    store_table(some_table(H200.name))
    assert chosen(INT4, H200, 1) == ["awq_gemv"]
    assert chosen(INT4, H200, 2, 64) == ["awq_gemm/5_large_tile"] * 2  # the next number that was measured
    assert chosen(INT4, H200, 65) == ["dequant_matmul"]  # beyond the measurements: the rules
    assert chosen(HALF, H200, 1, 2, 8, 9) == ["gemv_half", "matmul", "matmul", "matmul"]
    for other in (replace(INT4, group=64), replace(INT4, outputs=4097), replace(INT4, inputs=640)):
        assert choose(other, 2, H200) == "awq_gemv"
    assert choose(INT4, 2, V100) == "awq_gemv"  # another device's table is not asked
    assert choose(INT4, 64, SIMULATED) == "awq_gemm/5_large_tile"


@pytest.mark.parametrize("shape", [INT4, HALF, INT8])
@pytest.mark.parametrize("place", [V100, H200])
@pytest.mark.parametrize("tuned", [False, True])
def test_ranges_are_what_is_chosen(shape: WeightShape, place: Place, tuned: bool) -> None:
    if tuned:
        store_table(some_table(place.name))
    found = ranges(shape, place)
    assert found[-1][0] is None
    assert all(a[1] != b[1] for a, b in pairwise(found))
    for rows in range(1, 300):
        assert next(name for end, name in found if end is None or rows <= end) == choose(shape, rows, place)


def test_a_table_comes_back_as_it_was_stored() -> None:
    table = some_table(V100.name)
    path = store_table(table)
    assert load_table(V100.name) == table and path == table_path(V100.name)
    assert table.date == DATE and load_table(H200.name) is None
    assert table_path("a b/../c") != table_path("a b") and table_path("../../x").parent == path.parent


def test_a_newer_table_keeps_what_an_older_one_says_of_other_shapes() -> None:
    older = some_table(V100.name)
    newer = replace(older, measured=(row(INT4, 1, {"awq_gemv": 5e-6}), row(INT8, 1, {"gemv_int8": 1e-6})))
    both = newer.merged(older)
    assert len(both.measured) == 5
    assert [m.seconds for m in both.measured if (m.shape, m.rows) == (INT4, 1)] == [{"awq_gemv": 5e-6}]
    assert newer.merged(None) == newer
    for name in ("driver", "kernels", "torch", "toolkit", "labkit", "device"):
        assert newer.merged(replace(older, **{name: "other"})) == newer


def damaged(change: Any) -> str:
    document = some_table(V100.name).to_dict()
    change(document)
    return json.dumps(document)


DAMAGE = {
    "no JSON": '{"format": 1,',
    "no table": "[]",
    "another format": damaged(lambda d: d.update(format=2)),
    "no origin": damaged(lambda d: d.pop("driver")),
    "an origin that is no text": damaged(lambda d: d.update(torch=2.1)),
    "no measurements": damaged(lambda d: d.update(measured=[])),
    "measurements of another kind": damaged(lambda d: d.update(measured=7)),
    "an unknown kind": damaged(lambda d: d["measured"][0].update(kind="int3")),
    "an unknown candidate": damaged(lambda d: d["measured"][0].update(seconds={"magic": 1e-6})),
    "no seconds": damaged(lambda d: d["measured"][0].update(seconds={})),
    "negative seconds": damaged(lambda d: d["measured"][0].update(seconds={"dequant_matmul": -1e-6})),
    "infinite seconds": damaged(lambda d: d["measured"][0].update(seconds={"dequant_matmul": float("inf")})),
    "seconds that are no number": damaged(lambda d: d["measured"][0].update(seconds={"dequant_matmul": True})),
    "rows that the candidate does not take": damaged(lambda d: d["measured"][0].update(seconds={"awq_gemv": 1e-6})),
    "a negative number of rows": damaged(lambda d: d["measured"][0].update(rows=-1)),
    "outputs that are no number": damaged(lambda d: d["measured"][0].update(outputs="4096")),
    "no rows": damaged(lambda d: d["measured"][0].update(rows=0)),
    "seconds beyond any float": damaged(lambda d: d["measured"][0].update(seconds={"dequant_matmul": 10**400})),
    "brackets without end": "[" * 100_000,
    "a date that is none": damaged(lambda d: d["measured"][0].update(date="\x1b[31mtoday")),
    "a date that is no text": damaged(lambda d: d["measured"][0].update(date=None)),
    "another device's": damaged(lambda d: d.update(device=H200.name)),
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_table_that_cannot_be_used_is_told_and_passed_over(content: str, caplog: pytest.LogCaptureFixture) -> None:
    path = table_path(V100.name)
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ConfigError, match="tuning table") as caught:
        load_table(V100.name)
    assert str(path) in caught.value.message and "labkit tune" in caught.value.cure
    with caplog.at_level(logging.WARNING, "labkit"):
        assert chosen(INT4, V100, 1, 64, 200) == ["awq_gemv", "awq_gemm/5_large_tile", "dequant_matmul"]
    assert len(caplog.records) == 1 and "defaults" in caplog.text


def test_a_table_that_cannot_be_read() -> None:
    table_path(V100.name).mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_table(V100.name)


def test_a_table_of_anything_is_never_a_traceback(seed: int) -> None:
    """Random pieces of a real table replaced by what JSON can hold."""
    junk: list[Any] = [None, True, -1, 0, 1.5, "", "x", [], {}, [{}], {"a": 1}]
    for _ in range(300):
        document = some_table(V100.name).to_dict()
        spot: Any = random.choice([document, random.choice(document["measured"]), document["measured"]])
        key = random.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))
        spot[key] = random.choice(junk)
        path = table_path(V100.name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))
        try:
            table = load_table(V100.name)
        except ConfigError:
            continue
        assert isinstance(table, TuningTable)
        assert choose(INT4, 1, V100) in CANDIDATES["int4"]


def test_a_rule_is_there_for_every_row() -> None:
    assert rule_for("int4", 3, (7, 0)).candidate == "awq_gemv"
    assert rule_for("int4", 10**9, (12, 0)).candidate == "dequant_matmul"

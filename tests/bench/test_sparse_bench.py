"""The synthetic data of `labkit bench sparse`, what is counted on it, and the command."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from labkit.bench.sparse import DIM, HEADS, SEEDS, bench_sparse, estimate_cost
from labkit.bench.sparse_data import NEEDLE_MASS, needle_mass, synthetic
from labkit.bench.sparse_tiles import check_tiles
from labkit.cli.sparse import bench_sparse as command
from labkit.errors import ConfigError
from labkit.ops.sparse_settings import SparseSettings


def test_needles_hold_what_they_claim_and_two_draws_are_one() -> None:
    data, again = (synthetic(4096, 3, 4, 64, seed=5) for _ in range(2))
    assert data.starts[-1] == 4032 and all(start % 64 == 0 for start in data.starts)
    assert len(data.needles) == 3 * 4 * 5 and {needle.kind for needle in data.needles} == {"row", "key"}
    masses = torch.tensor([needle_mass(data, needle) for needle in data.needles])
    assert float((masses >= 0.3).float().mean()) > 0.4  # later needles take some from earlier ones
    assert float(masses.median()) == pytest.approx(NEEDLE_MASS, abs=0.15)
    assert all(torch.equal(*pair) for pair in ((data.keys, again.keys), (data.queries, again.queries)))
    assert not torch.equal(data.keys, synthetic(4096, 3, 4, 64, seed=6).keys)


def test_keys_are_like_their_neighbours_and_have_clusters() -> None:
    keys = synthetic(8192, 1, 2, 64, seed=1).keys
    centred = keys - keys.mean(0)
    near = torch.cosine_similarity(centred[4:-1], centred[5:], dim=-1).mean()
    far = torch.cosine_similarity(centred[4:4000], centred[4100:8096], dim=-1).mean()
    assert float(near) > 0.7 > 0.3 > float(far)


def test_all_mass_is_dense_and_less_is_less() -> None:
    everything, half = (bench_sparse(SparseSettings(mass=mass), [2048], [3], 2)[0] for mass in (1.0, 0.5))
    assert everything.kept_share == 1 and everything.recall == 1 and everything.error_worst == 0
    assert half.kept_share < 0.7 and half.error_mean > 0
    assert half.cost == pytest.approx(half.kept_share + half.estimate_cost)
    assert half.needles == everything.needles > 0


@pytest.mark.parametrize("seed_of_data", range(3))
def test_needles_are_found(seed_of_data: int) -> None:
    row = bench_sparse(SparseSettings(), [6144], [seed_of_data], 2)[0]
    assert row.needles > 20 and row.recall is not None and row.recall >= 0.97, row


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed_of_data", SEEDS)
def test_recall_and_kept_share_at_64k(seed_of_data: int, record_property: Callable[[str, object], None]) -> None:
    [row] = bench_sparse(SparseSettings(), [65536], [seed_of_data])
    for name in ("kept_share", "needles", "recall", "error_mean", "error_worst", "cost"):
        record_property(name, getattr(row, name))
    assert row.recall is not None and row.recall >= 0.99 and row.kept_share <= 0.25, row


def test_the_estimate_costs_an_eighth_of_dense_attention() -> None:
    dense = 4 * 64 * 1000 * DIM * HEADS
    rows, keys = 2 * 8 * 1000 * DIM * HEADS, 2 * 64 * 125 * DIM * HEADS
    assert estimate_cost() == pytest.approx((rows + keys) / dense, rel=0.02)


@pytest.mark.parametrize(("tiles", "seeds"), [(1, range(8)), (2, range(4)), (3, range(2)), (16, range(1))])
def test_the_smallest_context_that_is_named_works(tiles: int, seeds: range) -> None:
    with pytest.raises(ConfigError, match="well apart") as refused:
        bench_sparse(SparseSettings(), [64], [0], tiles)
    named = re.search(r"multiple of 64 from (\d+) on", str(refused.value))
    assert named is not None and int(named[1]) == 128 * tiles
    for row in bench_sparse(SparseSettings(), [int(named[1])], seeds, tiles):
        assert 0 < row.kept_share <= 1 and math.isfinite(row.error_worst)
        assert row.recall is None or row.recall > 0.9, row


@pytest.mark.parametrize("context", [128, 192, 448, 1024])
def test_needles_of_a_short_context_lie_before_their_tile(context: int) -> None:
    for seed in range(10):
        data = synthetic(context, context // 128, 2, 32, seed)
        assert len(data.needles) == 2 * 5 * len(data.starts)
        assert all(0 <= needle.position < data.starts[needle.tile] for needle in data.needles)


def test_without_needles_there_is_no_share() -> None:
    [row] = bench_sparse(SparseSettings(), [192], [3], 1)
    assert (row.needles, row.recall, row.recall_row, row.recall_key) == (0, None, None, None)


def test_impossible_contexts_are_refused_with_a_cure_that_works() -> None:
    for context, tiles, problem, cure in (
        (1000, 2, "1000 tokens is no multiple of 64", "Use 1024"),
        (8200, 2, "8200 tokens is no multiple of 64", "Use 8256"),
        (100, 2, "100 tokens is no multiple of 64", "Use 256"),
        (320, 16, "320 tokens does not hold 16 tiles", "from 2048 on, or at most 2 tiles"),
        (64, 1, "64 tokens does not hold 1 tile of", "from 128 on[.]"),
        (-64, 1, "-64 tokens does not hold", "from 128 on[.]"),
        (1024, 0, "0 tiles", "at least one"),
    ):
        with pytest.raises(ConfigError, match=f"{problem}.*{cure}"):
            bench_sparse(SparseSettings(), [context], [0], tiles)
    for context, tiles in ((256, 2), (320, 2), (128, 1), (8256, 2)):
        check_tiles(context, tiles)


def test_the_command_prints_a_table_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    settings = {"sparse_mass": 0.8, "sparse_sink": 2, "sparse_recent": None}
    given: dict[str, Any] = {"contexts": [2048], "seeds": [0], "tiles": 2, **settings}
    command(**given, timed=True, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["mass"] == 0.8 and document["settings"]["sink"] == 2
    [row] = document["rows"]
    assert row["context"] == 2048 and set(row["seconds"]) == {"choice", "kept", "dense"} and document["device"]
    assert math.isfinite(row["error_mean"])
    command(**given, timed=False, as_json=False)
    out = capsys.readouterr().out
    assert "2,048" in out and f"{row['kept_share']:.1%}" in out and max(map(len, out.splitlines())) <= 120

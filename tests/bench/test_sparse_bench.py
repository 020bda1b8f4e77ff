"""The synthetic data of `labkit bench sparse`, what is counted on it, and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit import LLM
from labkit.bench.perplexity import perplexity
from labkit.bench.sparse import DIM, HEADS, SEEDS, bench_sparse, estimate_cost
from labkit.bench.sparse_data import NEEDLE_MASS, needle_mass, synthetic
from labkit.bench.texts import DEFAULT_TEXT
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
    assert row.needles > 20 and row.recall >= 0.97, row


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed_of_data", SEEDS)
def test_recall_and_kept_share_at_64k(seed_of_data: int, record_property: Callable[[str, object], None]) -> None:
    [row] = bench_sparse(SparseSettings(), [65536], [seed_of_data])
    for name in ("kept_share", "needles", "recall", "error_mean", "cost"):
        record_property(name, getattr(row, name))
    assert row.recall >= 0.99 and row.kept_share <= 0.25, row


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_perplexity_of_a_real_text_at_8k(smollm2_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The model's limit is 8192 tokens: sparse from 1,024 on, so that nearly all of the text is read sparsely."""
    text, figures = DEFAULT_TEXT.read_text(encoding="utf-8"), list[float]()
    both: tuple[dict[str, Any], ...] = ({}, {"sparse_prefill": True, "sparse_threshold": 1024})
    for settings in both:
        with LLM(smollm2_path, executor="torch", **settings) as llm:
            figures.append(perplexity(llm, text, window=8000, stride=4000, max_tokens=8000).perplexity)
    for name, figure in zip(("dense", "sparse"), figures, strict=True):
        record_property(f"smollm2_perplexity_8k_{name}", figure)
    assert figures[0] != figures[1] and figures[1] <= 1.02 * figures[0]


def test_the_estimate_costs_an_eighth_of_dense_attention() -> None:
    dense = 4 * 64 * 1000 * DIM * HEADS
    rows, keys = 2 * 8 * 1000 * DIM * HEADS, 2 * 64 * 125 * DIM * HEADS
    assert estimate_cost() == pytest.approx((rows + keys) / dense, rel=0.02)


def test_impossible_contexts_are_refused() -> None:
    for context, tiles in ((1000, 2), (128, 16)):
        with pytest.raises(ConfigError, match="does not hold"):
            bench_sparse(SparseSettings(), [context], [0], tiles)


def test_the_command_prints_a_table_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    settings = {"sparse_mass": 0.8, "sparse_sink": 2, "sparse_recent": None}
    command([2048], [0], 2, **settings, timed=True, as_json=True)  # type: ignore[arg-type]
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["mass"] == 0.8 and document["settings"]["sink"] == 2
    [row] = document["rows"]
    assert row["context"] == 2048 and set(row["seconds"]) == {"choice", "kept", "dense"} and document["device"]
    assert math.isfinite(row["error_mean"])
    command([2048], [0], 2, **settings, timed=False, as_json=False)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert "2,048" in out and f"{row['kept_share']:.1%}" in out and max(map(len, out.splitlines())) <= 120

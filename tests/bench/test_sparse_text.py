"""`labkit bench sparse -m MODEL`: a model's attention to a real text, watched while it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit import LLM
from labkit.bench.perplexity import perplexity
from labkit.bench.sparse_text import SparseText, _Watcher, bench_sparse_text, page_shares, watching
from labkit.bench.texts import DEFAULT_TEXT
from labkit.cli.sparse import bench_sparse as command
from labkit.errors import ConfigError
from labkit.model import layers
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.ops.sparse_prefill import choose_pages
from labkit.ops.sparse_settings import SparseSettings
from labkit.quant.kv import KVFormat

FEW = SparseSettings(mass=0.3, sink=1, recent=1)


def drawn(count: int, kv_heads: int = 2, dim: int = 32) -> tuple[KVPages, list[int], Tensor]:
    """Full pages of a sequence in shuffled order, the page table, and rotated queries of the last 128 rows: sharp."""
    k, v = (PageStore(torch.randn(count + 2, kv_heads, 64, dim), None, 16) for _ in range(2))
    table = (torch.randperm(count + 1) + 1)[:count].tolist()
    return KVPages(k, v, KVFormat(torch.float32), dim), table, 3 * torch.randn(128, 2 * kv_heads, dim)


def exact_shares(q: Tensor, pages: KVPages, table: list[int], start: int) -> Tensor:
    """What rows q [64, heads, D] from ``start`` on pay to each page: fp64 [heads, 64, P], row by row."""
    k, group = pages.k.values[table].double(), q.shape[1] // pages.kv_heads
    found = torch.zeros(q.shape[1], 64, len(table), dtype=torch.float64)
    for head in range(q.shape[1]):
        keys = k[:, head // group].flatten(0, 1)
        for row in range(64):
            weights = (keys[: start + row + 1] @ q[row, head].double() / pages.head_dim**0.5).softmax(0)
            places = torch.arange(len(weights)) // 64
            found[head, row].index_add_(0, places, weights)
    return found


def test_shares_are_those_of_causal_attention(seed: int) -> None:
    pages, table, q = drawn(7)
    wanted = exact_shares(q[64:], pages, table, 6 * 64)
    torch.testing.assert_close(page_shares(q[64:], pages, table).double(), wanted, rtol=1e-4, atol=1e-6)


def test_needles_are_the_pages_that_rows_really_want(seed: int) -> None:
    """Two tiles of a chunk that begins at 448; sink, recent and own pages do not count."""
    pages, table, q = drawn(9)
    settings = SparseSettings(mass=0.5, sink=1, recent=2, needle=1, threshold=1)
    watcher = _Watcher([64, 448, 512], settings)  # the first was read before this chunk
    watcher(q, pages, PagedBatch.of([128], [576], [table]))
    rows, found = list[bool](), dict[tuple[int, int, int], bool]()
    for tile, start in enumerate((448, 512)):
        own, x = start // 64, q[64 * tile :][:64]
        kept = choose_pages(x, pages, PagedBatch.of([64], [start + 64], [table]), settings)
        shares = exact_shares(x, pages, table[: own + 1], start)
        for head, _, place in (shares[..., 1 : own - 2] >= 0.3).nonzero().tolist():
            is_kept = place + 1 in kept.index[0, head, : int(kept.count[0, head])].tolist()
            rows.append(is_kept)
            found[tile, head, place] = is_kept
    assert len(rows) > len(found) > sum(found.values()) > 0, "nothing to count"
    assert (len(watcher.rows), sum(watcher.rows)) == (len(rows), sum(rows))
    assert (len(watcher.pages), sum(watcher.pages)) == (len(found), sum(found.values()))
    [figures] = watcher.layers.values()
    assert len(figures.errors) == 2 and figures.visible == 4 * (8 + 9) and figures.kept < figures.visible


def test_an_engine_is_watched_only_inside(tiny_path: Path) -> None:
    seen, attention = list[int](), layers.attention_prefill
    with LLM(tiny_path, executor="torch", dtype="float32") as llm:
        ids = list(range(100))
        with pytest.raises(ZeroDivisionError), watching(lambda q, pages, batch: seen.append(id(pages))):
            watched = llm.logits(ids)
            raise ZeroDivisionError
        assert len(seen) == len(set(seen)) == 2, "labkit-tiny has two layers with attention"
        assert layers.attention_prefill is attention
        assert torch.equal(watched, llm.logits(ids)) and len(seen) == 2


def test_all_mass_is_dense_and_less_is_less() -> None:
    everything, few = (
        bench_sparse_text("labkit-tiny", settings, [1024], 3, timed=True)[0] for settings in (SparseSettings(1.0), FEW)
    )
    assert everything.kept_share == 1 and everything.error_worst == 0 == everything.added_percent
    assert everything.recall == everything.recall_pages == 1 and everything.needles >= everything.needle_pages > 0
    assert few.layers == len(few.kept_by_layer) == len(few.error_by_layer) == 2 and few.tiles == 3
    assert few.kept_share < 0.9 and few.kept_share == pytest.approx(sum(few.kept_by_layer) / 2)
    assert 0 < few.error_mean < few.error_worst and few.error_mean == pytest.approx(sum(few.error_by_layer) / 2)
    assert few.needles > everything.needles, "fewer recent pages leave more to be found"
    assert few.recall is not None and few.recall > 0.9
    assert few.dense_perplexity == everything.dense_perplexity != few.sparse_perplexity
    assert few.seconds is not None and set(few.seconds) == {"choice", "kept", "dense"}


def test_perplexities_are_those_of_eval(tiny_path: Path) -> None:
    [row] = bench_sparse_text("labkit-tiny", FEW, [512], 2)
    on = {"sparse_prefill": True, "sparse_threshold": 64, "sparse_mass": 0.3, "sparse_recent": 1}
    text, found = DEFAULT_TEXT.read_text(encoding="utf-8"), list[float]()
    for given in (dict[str, Any](), on):
        with LLM(tiny_path, executor="torch", dtype="float32", **given) as llm:
            found.append(perplexity(llm, text, window=512, stride=256, max_tokens=512).perplexity)
    assert [row.dense_perplexity, row.sparse_perplexity] == found and row.seconds is None


def test_what_does_not_fit_is_refused() -> None:
    for context, message in (
        (2048, "2047 tokens.*at most 1984"),
        (200, "multiple of 64.*Use 256"),
        (64, "from 256 on"),
    ):
        with pytest.raises(ConfigError, match=message):
            bench_sparse_text("labkit-tiny", FEW, [context], 2)
    with pytest.raises(ConfigError, match="needle and most"):
        bench_sparse_text("labkit-tiny", SparseSettings(needle=0.5), [512], 2)
    with pytest.raises(ConfigError, match=r"--seed.*Leave one"):
        command(model="labkit-tiny", seeds=[1])


def test_a_text_that_is_too_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Fellow citizens. " * 80, encoding="utf-8")
    monkeypatch.setattr("labkit.bench.sparse_text.DEFAULT_TEXT", short)
    with pytest.raises(ConfigError, match=r"The text has \d+ tokens, not 1024. Use at most \d+"):
        bench_sparse_text("labkit-tiny", FEW, [1024], 2)


def test_the_command_prints_a_table_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    given: dict[str, Any] = {"model": "labkit-tiny", "contexts": [512], "tiles": 2, "sparse_recent": 0, "timed": True}
    command(**given, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["model"] == "labkit-tiny" and document["text"] == "lincoln-1862.txt" and document["device"]
    assert document["settings"] == {"mass": 0.95, "sink": 1, "recent": 0, "needle": 0.1}
    [row] = document["rows"]
    assert set(row) == set(SparseText.__dataclass_fields__) and row["context"] == 512
    command(**given, as_json=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for figure in (f"{row['kept_share']:.1%}", str(row["needles"]), f"{row['sparse_perplexity']:.3f}", "time in torch"):
        assert figure in out, figure


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_real_text_at_8k(smollm2_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Kept share, needles, error and perplexity of 8,000 tokens, nearly all of which is read sparsely."""
    [row] = bench_sparse_text(str(smollm2_path), SparseSettings())
    names = ("kept_share", "needles", "recall", "needle_pages", "recall_pages", "error_mean", "error_worst")
    for name in (*names, "dense_perplexity", "sparse_perplexity"):
        record_property(f"smollm2_8k_{name}", getattr(row, name))
    assert row.layers == 30
    assert row.recall is not None and row.recall >= 0.93 and row.kept_share <= 0.4, row  # docs/sparse.md: 94.6, 35.9 %
    assert row.dense_perplexity != row.sparse_perplexity <= 1.02 * row.dense_perplexity, row

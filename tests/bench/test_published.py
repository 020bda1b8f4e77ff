"""The published figures: complete, sourced, and never labkit's own."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from labkit.bench import published
from labkit.bench.published import NOT_MEASURED, PublishedFigure, load_published, select, table
from labkit.errors import AssetError, ConfigError


def test_every_row_has_a_figure_a_source_and_a_system() -> None:
    figures = load_published()
    assert len(figures) > 50
    for figure in figures:
        assert figure.system and figure.hardware and figure.source and figure.context
        assert "labkit" not in figure.system.lower()
        rates = [rate for rate in (figure.prefill_tokens_per_s, figure.decode_tokens_per_s) if rate is not None]
        assert rates and all(0 < rate < 20_000 for rate in rates)
        assert figure.batch is None or figure.batch >= 1
        assert figure.gpus in (None, 1, 2, 4)


def test_no_row_stands_twice() -> None:
    figures = load_published()
    assert len(set(figures)) == len(figures)


def test_the_brief_rows_say_that_their_source_was_not_found() -> None:
    brief = [figure for figure in load_published() if figure.system == "v100llm"]
    batch_one = {f.context: (f.prefill_tokens_per_s, f.decode_tokens_per_s) for f in brief if f.batch == 1}
    assert batch_one == {
        "1K": (2031, 45.4),
        "8K": (1784, 43.0),
        "16K": (1589, 39.1),
        "64K": (1483, 39.1),
        "128K": (1426, 33.0),
    }
    assert {f.context: f.decode_tokens_per_s for f in brief if f.batch != 1} == {"1K": 107, "8K": 128, "16K": 140}
    for figure in brief:
        assert not figure.found_in_source
        assert "quoted second-hand; the original was not found" in figure.source


def test_figures_on_two_16_gb_cards() -> None:
    """The row that labkit's goal is compared with."""
    rows = [f for f in select(context="1K", speculative=False, batch=1) if (f.gpus, f.gpu_memory_gib) == (2, 16)]
    assert {(f.model, f.decode_tokens_per_s) for f in rows} == {("Qwen3.5-27B", 56.94), ("Qwen3.5-35B-A3B", 103.31)}


def test_speculative_rows_can_be_left_out() -> None:
    drafted = select(speculative=True)
    assert drafted and all("MTP" in figure.system for figure in drafted)
    assert not any("MTP" in figure.system for figure in select(speculative=False))
    assert len(drafted) + len(select(speculative=False)) == len(load_published())


@pytest.mark.parametrize("context", ["1K", "64K", None])
def test_table_ends_with_labkit_not_yet_measured(context: str | None) -> None:
    rows = table(context)
    assert len(rows) == len(select(context=context)) + 1
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert context is None or {row["context"] for row in rows} == {context}
    labkit = rows[-1]
    assert labkit["system"] == "labkit"
    assert labkit["decode_tokens_per_s"] == labkit["prefill_tokens_per_s"] == NOT_MEASURED


def test_unknown_context_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="3K") as caught:
        table("3K")
    assert "64K" in caught.value.cure


def test_file_is_plain_json_with_its_own_caption() -> None:
    document = json.loads((files("labkit.bench") / "published.json").read_text(encoding="utf-8"))
    assert "nothing here was measured by labkit" in document["about"]
    assert all(PublishedFigure(**row) for row in document["figures"])


@pytest.mark.parametrize(
    "damage", [{"source": ""}, {"prefill_tokens_per_s": None, "decode_tokens_per_s": None}, {"extra": 1}]
)
def test_damaged_file_is_reported(damage: dict[str, object], tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    document = json.loads((files("labkit.bench") / "published.json").read_text(encoding="utf-8"))
    document["figures"][0] |= damage
    (tmp_path / "published.json").write_text(json.dumps(document))
    monkeypatch.setattr(published, "files", lambda _: tmp_path)
    load_published.cache_clear()
    try:
        with pytest.raises(AssetError, match="damaged"):
            load_published()
    finally:
        load_published.cache_clear()

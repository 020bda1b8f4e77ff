"""docs/sparse.md says what docs/measured holds, and nothing that was typed by hand there."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from labkit.bench.results import measured_here
from labkit.bench.sparse import CONTEXTS, SEEDS, SparseRow
from labkit.bench.sparse_text import SparseText

ROOT = Path(__file__).parents[1]
SECONDS = {"choice": 1.25, "dense": 3.5, "kept": 2.0}
SETTINGS = {"mass": 0.9, "sink": 2, "recent": 3, "needle": 0.2}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sparse_page", ROOT / "tools" / "sparse_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up(
    context: int = 65536, kept: float = 0.2, recall: float | None = 0.995, timed: bool = True
) -> dict[str, Any]:
    """A document as `labkit bench sparse --json` prints it, of one row."""
    errors = {"error_mean": 0.0614, "error_worst": 0.777, "estimate_cost": 0.125, "cost": kept + 0.125}
    row = SparseRow(
        context, 4, 16, kept, 400, recall, 1.0, None, **errors, seconds=SECONDS if timed else None
    )  # fmt: skip
    return {"settings": SETTINGS, "rows": [row.to_dict()], **vars(measured_here())}


def text() -> dict[str, Any]:
    """The same of `labkit bench sparse -m imaginary`."""
    layers: dict[str, Any] = {"kept_by_layer": [0.3, 0.72], "error_by_layer": [0.01, 0.0345]}
    row = SparseText(
        context=8000, tiles=8, layers=2, kept_share=0.51, needles=1234, recall=0.998, needle_pages=321,
        recall_pages=None, error_mean=0.022, error_worst=0.66, dense_perplexity=25.5, sparse_perplexity=25.755,
        added_percent=1.0, seconds=SECONDS, **layers,
    )  # fmt: skip
    named = {"model": "imaginary", "text": "speech.txt"}
    return {"settings": SETTINGS, **named, "rows": [row.to_dict()], **vars(measured_here())}


def test_the_page_is_current(tool: ModuleType) -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run `python tools/sparse_page.py`"


def test_the_measured_files_are_whole() -> None:
    """Every context and seed with its time, and a real text of 8K; by the commands as they are, with the origin."""
    documents = [json.loads(file.read_text("utf-8")) for file in (ROOT / "docs" / "measured").glob("sparse-*.json")]
    [synthetic] = [document for document in documents if "model" not in document]
    [real] = [document for document in documents if "model" in document]
    assert [(row["context"], row["seed"]) for row in synthetic["rows"]] == [(n, s) for n in CONTEXTS for s in SEEDS]
    assert real["model"] == "smollm2" and real["rows"][0]["context"] >= 8000 and real["rows"][0]["layers"] == 30
    for document, kind in ((synthetic, SparseRow), (real, SparseText)):
        assert set(vars(measured_here())) | {"settings", "rows"} <= set(document) and document["origin"] == "measured"
        assert document["settings"] == {"mass": 0.95, "sink": 1, "recent": 4, "needle": 0.1}, "not the defaults"
        for row in document["rows"]:
            assert set(row) == {field.name for field in fields(kind)}
            assert set(row["seconds"]) == set(SECONDS)


def test_without_measurements_it_says_so(tool: ModuleType) -> None:
    assert tool.measured([]).count("Not yet measured.") == 2


def test_every_figure_of_made_up_keys_is_there(tool: ModuleType) -> None:
    lines, origin = tool.measured([made_up()]), measured_here()
    assert (
        "| 65,536 | 4 | 20.0% | 400 | 99.5% | 100.0% | - | 0.061 | 0.78 | 32% | 1.2 | 2.0 | 3.5 |" in lines
    )  # fmt: skip
    said = " ".join(lines)
    for words in ("Mass 0.9, 2 sink and 3 recent pages, needle 0.2.", origin.device, origin.torch, origin.labkit):
        assert words in said, words
    assert origin.date[:10] in said and "- 65,536 tokens: 2 of 400" in lines


def test_every_figure_of_a_text_is_there(tool: ModuleType) -> None:
    lines = tool.measured([text()])
    assert "## A real text through imaginary" in lines
    assert "| 8,000 | 51.0% | 1,234 | 99.8% | 321 | - | 0.022 | 0.66 | 1.2 | 2.0 | 3.5 |" in lines
    said = " ".join(line.strip() for line in lines)
    for words in (
        "`speech.txt`",
        "8 in each of 2,",
        "30% to 72% of the pages kept, a mean error of 0.010 to 0.035.",
        "from 1,000 tokens of context on: perplexity 25.755, dense 25.500 (+1.00 %).",
    ):
        assert words in said, words


@pytest.mark.parametrize("timed", [True, False])
def test_columns_and_cells_agree(tool: ModuleType, timed: bool) -> None:
    table = [line for line in tool.measured([made_up(timed=timed)]) if line.startswith("|")]
    assert len(table) == 3 and {line.count("|") for line in table} == {14 if timed else 11}
    table = [line for line in tool.measured([text()]) if line.startswith("|")]
    assert len(table) == 3 and {line.count("|") for line in table} == {12}


@pytest.mark.parametrize(
    ("row", "short"),
    [
        ({}, "Short of it: none (of 1)."),
        ({"kept": 0.26}, "Short of it: seed 4 (of 1)."),
        ({"recall": 0.98}, "Short of it: seed 4 (of 1)."),
        ({"recall": None}, "Short of it: seed 4 (of 1)."),
        ({"context": 8192}, "Short of it: not measured."),
    ],
)
def test_what_was_wanted_is_judged(tool: ModuleType, row: dict[str, Any], short: str) -> None:
    assert short in " ".join(tool.verdict(made_up(**row)["rows"]))

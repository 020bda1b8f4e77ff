"""What every chapter has to keep, so that it reads well, shows something before it is run, and is really checked."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
HEADINGS = ["Goal", "Predict", "Look", "Build", "Check", "Measure", "Explain", "Next"]
CHECKED = "nbval-check-output"
LINES, COLUMNS, BYTES = 15, 79, 200_000
MACHINE_PATH = re.compile(r"""(?:^|[\s"'(=:])(?:/(?:home|root|Users|tmp|var|opt|work|workspace|mnt)/|[A-Za-z]:\\)""")

Notebook = dict[str, Any]


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def is_checked(cell: dict[str, Any]) -> bool:
    return CHECKED in cell["metadata"].get("tags", [])


def payloads(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every piece of text in the cell's outputs, with its MIME type."""
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield "text/plain", joined(output["text"])
        for mime, content in output.get("data", {}).items():
            yield mime, content if isinstance(content, str) else joined(content)


def joined(text: Any) -> str:
    return "".join(text) if isinstance(text, (str, list)) else json.dumps(text)


# The rules: each yields what is wrong


def runs_anywhere(notebook: Notebook) -> Iterator[str]:
    if notebook["metadata"]["kernelspec"]["name"] != "python3":
        yield "the kernel is not python3"


def is_small(notebook: Notebook) -> Iterator[str]:
    size = len(json.dumps(notebook, ensure_ascii=False, indent=1).encode())
    if size > BYTES:
        yield f"{size} bytes"


def keeps_no_widget_state(notebook: Notebook) -> Iterator[str]:
    if "widgets" in notebook["metadata"]:
        yield "widget state in the metadata"
    for cell in code_cells(notebook):
        yield from (f"{mime} stored" for mime, _ in payloads(cell) if "widget" in mime)


def checks_something(notebook: Notebook) -> Iterator[str]:
    checked = [cell for cell in code_cells(notebook) if is_checked(cell)]
    if len(checked) < 2:
        yield f"{len(checked)} cells are checked"
    for cell in checked:
        if not cell["outputs"] or cell["execution_count"] is None:
            yield f"checked cell {cell['id']} has no stored output: nothing would be compared"


def was_run_from_top_to_bottom(notebook: Notebook) -> Iterator[str]:
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts {counts}"
    for cell in code_cells(notebook):
        if any(output["output_type"] == "error" for output in cell["outputs"]):
            yield f"cell {cell['id']} shows an error"


def cells_are_narrow_and_short(notebook: Notebook) -> Iterator[str]:
    for cell in code_cells(notebook):
        lines = joined(cell["source"]).splitlines()
        if len(lines) > LINES:
            yield f"cell {cell['id']} has {len(lines)} lines"
        yield from (f"cell {cell['id']}: {len(line)} columns" for line in lines if len(line) > COLUMNS)


def has_the_form_of_a_chapter(notebook: Notebook) -> Iterator[str]:
    prose = [joined(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    if not re.match(r"# \d\d · \S", prose[0]):
        yield "the first cell is no title like '# 00 · Start here'"
    headings = re.findall(r"^## (.+?)\s*$", "\n\n".join(prose), re.MULTILINE)
    if headings != HEADINGS:
        yield f"sections {headings}"


def pictures_have_words(notebook: Notebook) -> Iterator[str]:
    for cell in code_cells(notebook):
        for mime, content in payloads(cell):
            for tag in re.findall(r"<svg\b[^>]*>", content) if mime in ("image/svg+xml", "text/html") else []:
                if 'role="img"' not in tag or not re.search(r'aria-label="[^"]{20,}"', tag):
                    yield f"a picture of cell {cell['id']} has no words"
            if mime == "image/svg+xml":
                ElementTree.fromstring(content)


def pictures_have_text_beside_them(notebook: Notebook) -> Iterator[str]:
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data and len(joined(data.get("text/plain", ""))) < 20:
                yield f"a picture of cell {cell['id']} has no plain text"


def names_no_machine(notebook: Notebook) -> Iterator[str]:
    for cell in code_cells(notebook):
        for _, content in payloads(cell):
            if found := MACHINE_PATH.search(content):
                yield f"cell {cell['id']} shows the path {content[found.start() : found.end() + 30]!r}"


RULES: list[Callable[[Notebook], Iterator[str]]] = [
    runs_anywhere,
    is_small,
    keeps_no_widget_state,
    checks_something,
    was_run_from_top_to_bottom,
    cells_are_narrow_and_short,
    has_the_form_of_a_chapter,
    pictures_have_words,
    pictures_have_text_beside_them,
    names_no_machine,
]


def test_there_are_chapters() -> None:
    assert NOTEBOOKS and NOTEBOOKS[0].name == "00_start_here.ipynb"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_chapter(path: Path, rule: Callable[[Notebook], Iterator[str]]) -> None:
    assert list(rule(json.loads(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapter_has_the_format_of_a_notebook(path: Path) -> None:
    nbformat.validate(nbformat.read(path, as_version=nbformat.NO_CONVERT))


# Each rule notices its fault, on a good chapter spoilt in one place


@pytest.fixture(scope="module")
def good() -> Notebook:
    svg = '<svg role="img" aria-label="A picture of nothing at all." xmlns="http://www.w3.org/2000/svg"></svg>'
    picture = {"data": {"image/svg+xml": [svg], "text/plain": ["the same in plain text"]}, "metadata": {}}
    printed = {"output_type": "stream", "name": "stdout", "text": ["42\n"]}
    outputs = [printed, {"output_type": "display_data", **picture}]
    prose = [["# 99 · A chapter"], *([f"## {name}\n", "\n", "### Part\n"] for name in HEADINGS)]
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "source": text, "metadata": {}} for text in prose]
    for count in (1, 2):
        cell = {"cell_type": "code", "id": f"c{count}", "source": ["x = 1"], "outputs": copy.deepcopy(outputs)}
        cells.append({**cell, "execution_count": count, "metadata": {"tags": [CHECKED]}})
    return {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}


def spoil(notebook: Notebook, path: str, value: Any) -> Notebook:
    """A copy with one value replaced; path: keys and indices joined by slashes, ~ for a slash within a key."""
    spoilt = copy.deepcopy(notebook)
    *way, last = [int(step) if re.fullmatch(r"-?\d+", step) else step.replace("~", "/") for step in path.split("/")]
    place: Any = spoilt
    for step in way:
        place = place[step]
    place[last] = value
    return spoilt


FAULTS = [
    (runs_anywhere, "metadata/kernelspec/name", "my-env"),
    (is_small, "cells/-1/source", ["# " + "é" * BYTES]),
    (keeps_no_widget_state, "metadata/widgets", {}),
    (keeps_no_widget_state, "cells/-1/outputs/1/data/application~vnd.jupyter.widget-view+json", {"model_id": "1"}),
    (checks_something, "cells/-1/metadata", {}),
    (checks_something, "cells/-1/outputs", []),
    (checks_something, "cells/-1/execution_count", None),
    (was_run_from_top_to_bottom, "cells/-1/execution_count", 1),
    (was_run_from_top_to_bottom, "cells/-1/outputs/0", {"output_type": "error", "ename": "E", "evalue": ""}),
    (cells_are_narrow_and_short, "cells/-1/source", ["x = 1\n"] * 16),
    (cells_are_narrow_and_short, "cells/-1/source", ["x = 1\n", "#" * 80]),
    (has_the_form_of_a_chapter, "cells/0/source", ["# Untitled"]),
    (has_the_form_of_a_chapter, "cells/3/source", ["## Look again"]),
    (has_the_form_of_a_chapter, "cells/3/source", ["no heading"]),
    (pictures_have_words, "cells/-1/outputs/1/data/image~svg+xml", ["<svg xmlns='http://www.w3.org/2000/svg'></svg>"]),
    (pictures_have_words, "cells/-1/outputs/1/data/text~html", ['<p><svg role="img" aria-label=""></svg></p>']),
    (pictures_have_text_beside_them, "cells/-1/outputs/1/data/text~plain", ["<obj>"]),
    (names_no_machine, "cells/-1/outputs/0/text", ["read from ", "/home/me/labkit\n"]),
    (names_no_machine, "cells/-1/outputs/1/data/text~plain", ["File 'C:\\Users\\me' was read just now"]),
]


def test_the_good_chapter_breaks_no_rule(good: Notebook) -> None:
    assert [fault for rule in RULES for fault in rule(good)] == []


@pytest.mark.parametrize(("rule", "path", "value"), FAULTS)
def test_each_rule_notices_its_fault(
    good: Notebook, rule: Callable[[Notebook], Iterator[str]], path: str, value: Any
) -> None:
    assert list(rule(spoil(good, path, value)))

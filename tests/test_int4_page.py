"""docs/int4.md says what docs/measured holds, and nothing that was typed by hand there."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_page_about_int4_is_current() -> None:
    spec = importlib.util.spec_from_file_location("int4_page", ROOT / "tools" / "int4_page.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (ROOT / "docs" / "int4.md").read_text(encoding="utf-8") == tool.page()


def test_every_measured_file_says_where_it_comes_from() -> None:
    files = sorted((ROOT / "docs" / "measured").glob("*.json"))
    assert files
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["origin"] == "measured"
        assert document["device"] and document["torch"] and document["labkit"]
        assert document.get("driver") or document["threads"], "neither a GPU's driver nor a CPU's threads"

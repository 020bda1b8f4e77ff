"""The record of slow tests: made from a real pytest run, with what failed and what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import record as record_script

SUITE = """
import pytest

def test_measures(record_property):
    record_property("decode_tokens_per_s", 61.25)
    record_property("note", "a|b")

def test_fails():
    assert False

@pytest.mark.skip(reason="no reason")
def test_skipped():
    pass

@pytest.fixture
def broken():
    raise RuntimeError

def test_error(broken):
    pass
"""


def junit(folder: Path, suite: str) -> Path:
    (folder / "test_suite.py").write_text(suite)
    target = folder / "slow.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "-c",
        "/dev/null",
    ]
    options = [f"--junitxml={target}", "-o", "junit_family=xunit1", str(folder)]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the plugins installed here take long to load
    subprocess.run([*command, *options], cwd=folder, env=bare, capture_output=True, timeout=120, check=False)
    return target


def test_record_of_a_run(tmp_path: Path) -> None:
    source = junit(tmp_path, SUITE)
    script = Path(record_script.__file__)
    done = subprocess.run(
        [sys.executable, str(script), str(source), str(tmp_path / "records")],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    [data] = (tmp_path / "records").glob("*.json")
    record = json.loads(data.read_text())
    assert record["outcomes"] == {"passed": 1, "failed": 1, "skipped": 1, "error": 1}
    figures = {test["test"].split("::")[-1]: test["figures"] for test in record["tests"]}
    assert figures["test_measures"] == {"decode_tokens_per_s": "61.25", "note": "a|b"}
    for field in ("date", "commit", "python", "torch", "cpu", "cores", "system"):
        assert record[field]
    assert data.name.startswith(record["date"][:10])
    text = data.with_suffix(".md").read_text()
    assert "decode_tokens_per_s = 61.25; note = a\\|b" in text
    assert "1 failed" in text and record["commit"] in text
    assert str(data.with_suffix(".md")) in done.stdout


def test_record_of_no_tests(tmp_path: Path) -> None:
    source = junit(tmp_path, "")
    record = {**record_script.environment(), **record_script.read_junit(source)}
    assert "no tests" in record_script.markdown(record)

"""Turn a pytest JUnit file into a dated record: ``python tests/record.py build/slow.xml tests/records``.

Writes DATE-COMMIT.json and the same as .md. What tests hand to ``record_property`` becomes the record's figures, so
that a measured number always stands beside the machine, the versions and the commit that it was measured with.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    record = {**environment(), **read_junit(source)}
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{record['date'][:10]}-{record['commit'][:10]}"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(markdown(record), encoding="utf-8")
    print(f"Record: {stem}.md")


def environment() -> dict[str, Any]:
    """When, on what, and of which commit; ``dirty`` if tracked files differed from it."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
    }


def read_junit(path: Path) -> dict[str, Any]:
    """Outcome counts, total seconds, and each test with its outcome, seconds and recorded figures."""
    tests = [_test(case) for case in ElementTree.parse(path).getroot().iter("testcase")]
    outcomes = Counter(test["outcome"] for test in tests)
    return {"outcomes": dict(outcomes), "seconds": round(sum(test["seconds"] for test in tests), 1), "tests": tests}


def _test(case: ElementTree.Element) -> dict[str, Any]:
    bad = next((tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None), None)
    outcome = {"failure": "failed", "error": "error", "skipped": "skipped", None: "passed"}[bad]
    figures = {prop.get("name", ""): prop.get("value", "") for prop in case.iter("property")}
    name = f"{case.get('classname', '')}::{case.get('name', '')}"
    return {"test": name, "outcome": outcome, "seconds": float(case.get("time") or 0), "figures": figures}


def markdown(record: dict[str, Any]) -> str:
    """The record for reading: the machine, the counts, the figures, and every test."""
    state = " (with uncommitted changes)" if record["dirty"] else ""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(record["outcomes"].items())) or "no tests"
    lines = [
        f"# Slow tests, {record['date']}",
        "",
        f"- Commit {record['commit']}{state}",
        f"- Python {record['python']}, torch {record['torch']}, {record['system']}",
        f"- {record['cpu']}, {record['cores']} cores",
        f"- {counts}, in {record['seconds']} s",
        "",
        "| test | outcome | seconds | figures |",
        "|---|---|---:|---|",
    ]
    return "\n".join([*lines, *(_row(test) for test in record["tests"])]) + "\n"


def _row(test: dict[str, Any]) -> str:
    figures = "; ".join(f"{name} = {value}" for name, value in test["figures"].items())
    cells = (test["test"], test["outcome"], f"{test['seconds']:.1f}", figures)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


if __name__ == "__main__":
    main()

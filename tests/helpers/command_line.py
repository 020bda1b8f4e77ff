"""Runs of the command line and what they have to look like when they refuse something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
TINY = ["-m", "labkit-tiny"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


def refused(ended: Ended, *words: str) -> None:
    """Exit code 1, nothing on stdout, one line on stderr that holds the words (cases aside)."""
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("labkit: ") and ended.err.endswith("\n") and ended.err.count("\n") == 1
    for word in words:
        assert re.search(word, ended.err, re.IGNORECASE), f"{word!r} is not in: {ended.err}"


def run_process(*arguments: str, stdin: str = "") -> Ended:
    """Runs ``python -m labkit ...``, its output piped, without network."""
    command = [sys.executable, "-m", "labkit", *arguments]
    settings: dict[str, Any] = {"cwd": ROOT, "env": ENVIRONMENT, "timeout": 120, "encoding": "utf-8"}
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, **settings)
    return Ended(done.returncode, done.stdout, done.stderr)

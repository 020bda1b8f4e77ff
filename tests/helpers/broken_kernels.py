"""One line of a rung changed by hand: does what checks the rung notice?"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from helpers.accuracy import Shape

from labkit.device import sources, use_executor
from labkit.device.sim_executor import simulated_with
from labkit.errors import KernelBuildError, LabkitError
from labkit.sim.options import Options


class Workshop:
    """A copy of the kernels' sources, which are used instead of the originals until the test ends."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        shutil.copytree(sources.source_root(), folder, dirs_exist_ok=True)
        monkeypatch.setattr(sources, "source_root", lambda: folder)

    def change(self, op: str, rung: str, before: str, after: str) -> None:
        """Replace the one place of the rung's source that reads ``before``."""
        file = self.folder / op / f"{rung}.cu"
        text = file.read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{before!r} stands {text.count(before)} times in {file.name}"
        file.write_text(text.replace(before, after), encoding="utf-8")


def noticed(check: Callable[[str, Shape, str], None], rung: str, shapes: Iterable[Shape]) -> bool:
    """By a finding of the simulator or a wrong result, with any of the shapes. What does not compile raises."""
    return any(_complains(check, rung, shape) for shape in shapes)


def _complains(check: Callable[[str, Shape, str], None], rung: str, shape: Shape) -> bool:
    try:
        with use_executor("sim"), simulated_with(Options(counters=False)):
            check(rung, shape, "cpu")
    except KernelBuildError:
        raise
    except (LabkitError, AssertionError):
        return True
    return False

"""The kernels of tests/gpu/probe as an operation of their own, compiled or carried."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.device import Kernel, sources
from labkit.device.carried import Image
from labkit.device.kernel_folder import write_folder
from labkit.device.resources import Resources
from labkit.device.sources import Source

FOLDER = Path(__file__).resolve().parents[1] / "gpu" / "probe"
ENTRIES = ("scale", "late", "turn_round", "many")


FRESH = {"FRESH": 1}  # the same kernels once more, for a test that must be the first to load them


def probe(entry: str, fresh: bool = False) -> Kernel:
    return Kernel("probe", "1_probe", entry, FRESH if fresh else {})


def use_probe(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `probe` an operation, from its carried PTX, for the rest of the test."""
    text, ptx = ((FOLDER / f"1_probe.{kind}").read_text(encoding="utf-8") for kind in ("cu", "ptx"))
    source = Source("probe/1_probe.cu", text, {})
    needs = Resources(registers=32, spill_stores=0, spill_loads=0, shared_bytes=0, stack_bytes=0, barriers=1)
    image = Image(ptx, {}, {"sm_70": dict.fromkeys(ENTRIES, needs)}, "NVRTC 12.8")
    write_folder(
        scratch / "kernels", image.compiler, {("probe", "1_probe"): [({}, source, image), (FRESH, source, image)]}
    )
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(scratch / "kernels"))
    elsewhere = sources.rung_path

    def rung_path(op: str, rung: str) -> Path:
        return FOLDER / f"{rung}.cu" if op == "probe" else elsewhere(op, rung)

    monkeypatch.setattr(sources, "rung_path", rung_path)

"""The PTX carried for tests/gpu/test_launch.py is what its source compiles to, and runs on the simulator too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.cuda_sources import forget_kernels
from helpers.probe import FOLDER, probe, use_probe

from labkit.device import Out
from labkit.device.compile import compile_source
from labkit.device.nvrtc import find_nvrtc


@pytest.mark.skipif(str(find_nvrtc()) != "NVRTC 12.8", reason="the carried PTX is that of NVRTC 12.8")
def test_carried_ptx_is_current() -> None:
    built = compile_source((FOLDER / "1_probe.cu").read_text(encoding="utf-8"), "probe/1_probe.cu")
    carried = FOLDER / "1_probe.ptx"
    if not carried.exists():
        carried.write_text(built.ptx, encoding="utf-8")
        pytest.fail(f"{carried.name} was missing and has been written: add it to the repository")
    assert carried.read_text(encoding="utf-8") == built.ptx, f"delete {carried} and run this test again"


def test_the_probe_on_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    use_probe(tmp_path, monkeypatch)
    forget_kernels()
    x, y, flag = torch.randn(300), torch.zeros(300), torch.zeros(1, dtype=torch.int32)
    probe("scale").launch(2, 256, [x, Out(y), 3.0, 300])
    assert torch.equal(y, 3 * x)
    probe("turn_round").launch(1, 64, [x, Out(y), 300], 1200)
    assert torch.equal(y, x.flip(0))
    probe("late").launch(1, 1, [10, flag, 7])
    assert flag.item() == 7
    forget_kernels()

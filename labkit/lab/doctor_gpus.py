"""The NVIDIA GPUs of this machine, as its driver names them, and as they are plugged in."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

NVIDIA, DISPLAY = "0x10de", "0x03"  # PCI vendor, and the class of display controllers


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver names it; memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int
    driver: str

    @property
    def is_v100(self) -> bool:
        return self.capability == (7, 0)


def find_gpus() -> tuple[Gpu, ...]:
    """By ``nvidia-smi``, because a CPU build of torch does not see a GPU that is there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = ["--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run([program, *query], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()  # a driver that does not answer is no driver: the check says that no GPU was found
    return parse_gpus(output)


def parse_gpus(output: str) -> tuple[Gpu, ...]:
    """The lines of ``nvidia-smi`` as GPUs; lines of another form (its own error texts) are passed over."""
    gpus = []
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not cells[2].isdigit():
            continue
        major, _, minor = cells[1].partition(".")
        if major.isdigit() and minor.isdigit():
            gpus.append(Gpu(cells[0], (int(major), int(minor)), int(cells[2]) * 2**20, cells[3]))
    return tuple(gpus)


def count_pci_gpus(bus: Path = Path("/sys/bus/pci/devices")) -> int:
    """NVIDIA's display controllers on the PCI bus, as Linux lists it; 0 on other systems."""
    return sum(
        _first_line(device / "vendor") == NVIDIA and _first_line(device / "class").startswith(DISPLAY)
        for device in (bus.iterdir() if bus.is_dir() else ())
    )


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""

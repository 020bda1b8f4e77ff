"""Writes docs/kernels.md, what each kernel takes on a V100, and cuda/shipped.json, which kernels a wheel carries.

Both follow from the sources and from `labkit.ops.ladders`; tests fail where they no longer do. `make kernel-page` runs
this.
"""

from __future__ import annotations

from pathlib import Path

from labkit.device.build_all import SHIPPED_LIST, all_rungs, build_all, shipped_text
from labkit.device.kernel_page import kernel_page
from labkit.device.nvrtc import find_nvrtc
from labkit.ops.ladders import LADDERS

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    wanted = all_rungs(LADDERS.values())
    (ROOT / "cuda" / SHIPPED_LIST).write_text(shipped_text(wanted), encoding="utf-8")
    page = ROOT / "docs" / "kernels.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(kernel_page(build_all(wanted), str(find_nvrtc())), encoding="utf-8")


if __name__ == "__main__":
    main()

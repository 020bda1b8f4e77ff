"""Chapter 12 shows what was measured, and says so where nothing was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.lab.gdn_measured import ABSENT, measured


def document(**changes: Any) -> dict[str, Any]:
    """As ``labkit bench gdn --json`` writes it, of a GPU that does not exist."""
    place = {"model": "27b-tp2", "sequences": 64, "tokens": 1, "microseconds": {"labkit": 100.0, "torch": 1000.0}}
    decode = {**place, "mb": 200.0, "gb_per_s": {"labkit": 2000.0, "torch": 200.0}, "share_of_copy": 0.5}
    prefill = {**place, "sequences": 1, "tokens": 4096, "tflop_per_s": {"labkit": 12.34, "torch": 1.0}}
    origin = {"device": "imaginary", "date": "2001-02-03", "labkit": "0.0", "torch": "0.1", "copy_gb_per_s": 4000.0}
    return {**origin, "decode": [decode, {**decode, "model": "27b"}], "prefill": [prefill], **changes}


def test_nothing_was_measured(tmp_path: Path) -> None:
    (tmp_path / "attention-imaginary.json").write_text("{}", encoding="utf-8")
    assert measured(tmp_path) == ABSENT == measured(tmp_path / "absent")


def test_every_file_with_its_origin(tmp_path: Path) -> None:
    (tmp_path / "gdn-b.json").write_text(json.dumps(document(device="another", decode=[])), encoding="utf-8")
    (tmp_path / "gdn-a.json").write_text(json.dumps(document()), encoding="utf-8")
    assert measured(tmp_path).splitlines() == [
        "imaginary, measured 2001-02-03, labkit 0.0, torch 0.1; a copy moves 4,000 GB/s",
        "  decode, 64 x 1 tokens: labkit 100.0 us (2,000 GB/s), torch 1,000.0 us (200 GB/s); 50% of the copy",
        "  prefill, 1 x 4096 tokens: labkit 100.0 us (12.3 TFLOP/s), torch 1,000.0 us (1.0 TFLOP/s)",
        "another, measured 2001-02-03, labkit 0.0, torch 0.1; a copy moves 4,000 GB/s",
        "  prefill, 1 x 4096 tokens: labkit 100.0 us (12.3 TFLOP/s), torch 1,000.0 us (1.0 TFLOP/s)",
    ]

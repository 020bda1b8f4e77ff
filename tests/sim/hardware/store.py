"""The recorded results: one compressed file of bytes, with a JSON header that says where they come from.

File layout (.npz): "header", the UTF-8 bytes of a JSON object with the origin (device, driver, date, commit) and, by
name, where each record's bytes lie and a checksum of what was run; "bytes", all records one after the other.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).parent / "recorded"
Results = dict[str, tuple[int, np.ndarray]]  # name -> (checksum of what was run, bytes that came out)


def checksum(*parts: bytes) -> int:
    """Of PTX text and operands: a record of anything else is stale."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


@dataclass(frozen=True)
class Recording:
    """Hardware results by name."""

    origin: dict[str, Any]
    entries: dict[str, dict[str, int]]  # name -> {"start", "size", "checksum"}
    content: np.ndarray  # uint8

    def result(self, name: str, expected_checksum: int) -> np.ndarray:
        """Bytes that the hardware wrote; KeyError when nothing was recorded or something else was."""
        entry = self.entries.get(name)
        if entry is None or entry["checksum"] != expected_checksum:
            raise KeyError(f"No recorded result for {name!r} as it is now; run tests/sim/hardware/record.py on a GPU.")
        return self.content[entry["start"] : entry["start"] + entry["size"]]


def save(path: Path, origin: dict[str, Any], results: Results) -> None:
    """Write all results and where they come from; equal bytes are kept once."""
    entries, kept, start = {}, dict[bytes, int](), 0
    parts: list[np.ndarray] = []
    for name, (check, raw) in results.items():
        content = raw.tobytes()
        if content not in kept:
            kept[content] = start
            parts.append(raw)
            start += raw.size
        entries[name] = {"start": kept[content], "size": raw.size, "checksum": check}
    header = json.dumps({"origin": origin, "entries": entries}).encode()
    joined = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, header=np.frombuffer(header, np.uint8), bytes=joined)


def load(path: Path) -> Recording:
    with np.load(path) as file:
        header = json.loads(file["header"].tobytes())
        return Recording(header["origin"], header["entries"], file["bytes"])

"""What `labkit tune` measured on one device: the file that keeps it, and what it says about a call.

One JSON file for each device name, ``tuning/<name>.json`` in the user's cache folder. It says where its figures come
from: device, driver, toolkit, date, and a digest of the kernels that were timed.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from labkit.device.user_files import user_cache_folder, write_whole
from labkit.errors import ConfigError

FORMAT = 1
Kind = Literal["int4", "int8", "half"]  # of a weight: PackedInt4, Int8Weight, fp16
MOST_ROWS = 8  # of the matrix-vector kernels
# What may compute x W^T for a kind of weight: name -> the most rows that it takes, None for any number.
CANDIDATES: Mapping[str, Mapping[str, int | None]] = {
    "int4": {"dequant_matmul": None, "awq_gemv": MOST_ROWS, "awq_gemm/4_small_m": None, "awq_gemm/5_large_tile": None},
    "int8": {"dequant_matmul": None, "gemv_int8": MOST_ROWS},
    "half": {"matmul": None, "gemv_half": MOST_ROWS},
}
ORIGIN = ("device", "driver", "toolkit", "torch", "labkit", "kernels")
RETUNE = "Run `labkit tune` on this device again, or delete the file."


@dataclass(frozen=True)
class WeightShape:
    """A weight as the choice sees it: N outputs, K inputs, and the inputs that share a scale (0 for "half")."""

    kind: Kind
    outputs: int
    inputs: int
    group: int

    def __str__(self) -> str:
        return f"{self.outputs}x{self.inputs} {'fp16' if self.kind == 'half' else f'{self.kind} g{self.group}'}"


@dataclass(frozen=True)
class Measured:
    """Seconds of one call with ``rows`` rows, by candidate; ``date``: when, ISO 8601."""

    shape: WeightShape
    rows: int
    seconds: Mapping[str, float]
    date: str

    @property
    def best(self) -> str:
        """The fastest candidate."""
        return min(self.seconds, key=lambda name: self.seconds[name])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self.shape), "rows": self.rows, "seconds": dict(self.seconds), "date": self.date}


@dataclass(frozen=True)
class TuningTable:
    """All measurements of a device. kernels: digest of the timed sources; toolkit: CUDA of torch."""

    device: str
    driver: str
    toolkit: str
    torch: str
    labkit: str
    kernels: str
    measured: tuple[Measured, ...]

    @cached_property
    def _by_shape(self) -> dict[WeightShape, list[Measured]]:
        shapes: dict[WeightShape, list[Measured]] = {}
        for row in sorted(self.measured, key=lambda row: row.rows):
            shapes.setdefault(row.shape, []).append(row)
        return shapes

    @property
    def date(self) -> str:
        """Of the latest measurement."""
        return max(row.date for row in self.measured)

    def best(self, shape: WeightShape, rows: int) -> str | None:
        """The candidate that won at the next measured number of rows, since kernels work in tiles of rows.

        None for a shape that was not measured, and beyond its largest number of rows.
        """
        return next((row.best for row in self._by_shape.get(shape, ()) if row.rows >= rows), None)

    def rows_of(self, shape: WeightShape) -> tuple[int, ...]:
        """The numbers of rows that were measured for a shape, in order."""
        return tuple(row.rows for row in self._by_shape.get(shape, ()))

    def merged(self, older: TuningTable | None) -> TuningTable:
        """With what an older table of the same software and kernels says about other shapes and rows."""
        if older is None or any(getattr(self, name) != getattr(older, name) for name in ORIGIN):
            return self
        mine = {(row.shape, row.rows) for row in self.measured}
        kept = (row for row in older.measured if (row.shape, row.rows) not in mine)
        return TuningTable(**{name: getattr(self, name) for name in ORIGIN}, measured=(*kept, *self.measured))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        origin = {name: getattr(self, name) for name in ORIGIN}
        return {"format": FORMAT, **origin, "measured": [row.to_dict() for row in self.measured]}


def table_path(device_name: str) -> Path:
    """Where the table of a device lies, or would."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", device_name).strip("-.")
    return Path(os.path.expanduser(user_cache_folder())) / "tuning" / f"{name}.json"


def load_table(device_name: str) -> TuningTable | None:
    """The table of a device; None if nobody made one. Raises ConfigError for one that cannot be used."""
    path = table_path(device_name)
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise ConfigError(f"The tuning table {path} {reason}.", cure="Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The tuning table {path} is damaged ({error}).", cure=RETUNE) from error
    try:
        table = _parsed(document)
    except (KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"The tuning table {path} is damaged ({reason}).", cure=RETUNE) from error
    if table.device != device_name:
        message = f"The tuning table {path} was measured on {table.device}, not on {device_name}."
        raise ConfigError(message, cure=RETUNE)
    return table


def store_table(table: TuningTable) -> Path:
    """Write it for its device and return where. Raises OSError."""
    path = table_path(table.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(table.to_dict(), indent=1) + "\n").encode())
    return path


def _parsed(document: Any) -> TuningTable:
    if not isinstance(document, dict) or document["format"] != FORMAT:
        raise ValueError(f"this version of labkit reads format {FORMAT}")
    origin = {name: document[name] for name in ORIGIN}
    if not all(isinstance(value, str) for value in origin.values()):
        raise ValueError("its origin is no text")
    measured = tuple(_measured(record) for record in document["measured"])
    if not measured:
        raise ValueError("it has no measurements")
    return TuningTable(**origin, measured=measured)


def _measured(record: Any) -> Measured:
    shape = WeightShape(record["kind"], *(_count(record[name]) for name in ("outputs", "inputs", "group")))
    rows, seconds, date = _count(record["rows"]), record["seconds"], record["date"]
    known = CANDIDATES[shape.kind]
    if not isinstance(date, str) or not seconds or not isinstance(seconds, dict) or not rows:
        raise ValueError("a measurement without date, rows or seconds")
    datetime.fromisoformat(date)
    for name, value in seconds.items():
        most = known[name]  # a KeyError names a candidate of another version
        if most is not None and rows > most:
            raise ValueError(f"{name} does not take {rows} rows")
        if not isinstance(value, float) or not 0 < value < math.inf:
            raise ValueError(f"{name} took {value!r:.40} seconds")
    return Measured(shape, rows, seconds, date)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value

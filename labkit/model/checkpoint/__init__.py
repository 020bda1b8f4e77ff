"""Reading checkpoints: ``open_checkpoint(path)`` gives a ``Checkpoint``, whatever the format of the file."""

from __future__ import annotations

from pathlib import Path

from labkit.errors import CheckpointError
from labkit.model.checkpoint.base import Checkpoint
from labkit.model.checkpoint.gguf_file import GgufCheckpoint
from labkit.model.checkpoint.ranges import check_finite, to_half_checked
from labkit.model.checkpoint.report import LoadReport, RangeFinding
from labkit.model.checkpoint.safetensors_dir import SafetensorsCheckpoint
from labkit.model.checkpoint.tied import head_is_tied

__all__ = [
    "Checkpoint",
    "GgufCheckpoint",
    "LoadReport",
    "RangeFinding",
    "SafetensorsCheckpoint",
    "check_finite",
    "head_is_tied",
    "open_checkpoint",
    "to_half_checked",
]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a safetensors directory or a ``.gguf`` file; only headers are read.

    Raises CheckpointError for files that are missing, truncated or contradictory, and UnsupportedModelError
    for sound files that labkit does not run.
    """
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    if path.is_file() and path.suffix == ".gguf":
        return GgufCheckpoint(path)
    what = "is neither a directory nor a .gguf file" if path.exists() else "does not exist"
    raise CheckpointError(
        f"{path} {what}.", cure="Give a directory with config.json and *.safetensors, or a .gguf file."
    )

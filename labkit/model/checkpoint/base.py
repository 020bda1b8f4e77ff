"""What every checkpoint offers to the code that builds a model from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.errors import CheckpointError
from labkit.model.checkpoint.report import LoadReport
from labkit.quant.int4 import Int4Weight


class Checkpoint(ABC):
    """An opened checkpoint: header read, weights still on disk (memory-mapped).

    path: directory or file.
    config: the model's ``config.json`` (for GGUF: the same keys, translated).
    generation_config: ``generation_config.json``, {} if there is none.
    tokenizer_files: directory that holds ``tokenizer.json``, or None.
    gguf_metadata: all ``tokenizer.*`` and ``general.*`` keys of a GGUF file; {} for other formats.
    report: what was noticed while loading.
    total_bytes, bytes_read: size of the tensors of the text model, and how much of it was read so far.
    """

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer_files: Path | None
    gguf_metadata: dict[str, Any]
    total_bytes: int

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation_config = {}
        self.tokenizer_files = None
        self.gguf_metadata = {}
        self.report = LoadReport()
        self.bytes_read = 0
        self._used: set[str] = set()

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Canonical names of all tensors of the text model, its head and its MTP block."""

    @abstractmethod
    def tensor(self, name: str, *, rows: slice | None = None) -> Tensor:
        """A tensor in the file's dtype (float32 where the file has blocks of 4 or 8 bits), or some of its rows.

        Raises CheckpointError if it is missing or holds NaN or infinity.
        """

    @abstractmethod
    def linear(self, module: str, *, rows: slice | None = None, cols: slice | None = None) -> Tensor | Int4Weight:
        """The weight of a linear module ``[N, K]``, dense or INT4 as the file has it, or a slice of it.

        rows: outputs wanted. cols: inputs wanted; for INT4 they begin and end at group boundaries.
        Raises CheckpointError (missing, incomplete, not finite) or UnsupportedModelError (other formats).
        """

    def has(self, name: str) -> bool:
        """Whether the tensor exists."""
        return name in self.names()

    def unused(self) -> frozenset[str]:
        """Names that nobody has read so far."""
        return self.names() - self._used

    def _mark(self, name: str, nbytes: int) -> None:
        self._used.add(name)
        self.bytes_read += nbytes


def missing_tensor(path: Path, name: str) -> CheckpointError:
    """The error for a tensor that the checkpoint at ``path`` ought to have."""
    return CheckpointError(
        f"{path.name} has no tensor {name}.",
        cure="Check that all files of the checkpoint were fetched and that config.json belongs to them.",
    )


def bounds(wanted: slice | None, size: int) -> tuple[int, int]:
    """(start, stop) of a slice of step 1 over ``size`` entries. Raises ValueError if it reaches outside."""
    if wanted is None:
        return 0, size
    start, stop = wanted.start or 0, size if wanted.stop is None else wanted.stop
    if wanted.step not in (None, 1) or not 0 <= start <= stop <= size:
        raise ValueError(f"{wanted} is no plain range within {size} entries.")
    return start, stop


def group_span(cols: tuple[int, int], group_size: int) -> tuple[int, int]:
    """The groups that the inputs in ``cols`` make up; raises CheckpointError if they cut one."""
    if cols[0] % group_size or cols[1] % group_size:
        raise CheckpointError(
            f"Inputs {cols[0]} to {cols[1]} cut a quantization group of {group_size}.",
            cure="Choose a --tp-size that divides the number of groups.",
        )
    return cols[0] // group_size, cols[1] // group_size


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested object of ``config.json``, {} if absent or null; raises CheckpointError if it is anything else."""
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{key} in config.json is no JSON object.", cure="Fetch config.json again.")
    return value

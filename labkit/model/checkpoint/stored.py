"""The tensors of a safetensors directory: their headers, and slices of their data. It knows nothing of formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from labkit.errors import CheckpointError, UnsupportedModelError
from labkit.model.checkpoint.base import missing_tensor
from labkit.model.checkpoint.layout import Shape, Span
from labkit.model.checkpoint.ranges import check_finite, scales_exactly
from labkit.model.checkpoint.report import LoadReport
from labkit.model.checkpoint.shards import FETCH_AGAIN, Entry

DENSE_DTYPES = ("F32", "F16", "BF16")
WORD_DTYPES = ("I32",)  # eight nibbles each


class StoredTensors:
    """Reads what is asked for, and nothing else.

    path: the directory. entries: canonical name -> entry. report: where findings go.
    on_read: called with the name and the bytes of every read.
    """

    def __init__(
        self, path: Path, entries: dict[str, Entry], report: LoadReport, on_read: Callable[[str, int], None]
    ) -> None:
        self.path, self.entries, self.report = path, entries, report
        self._on_read = on_read
        self._files: dict[Path, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def shape(self, name: str, dtypes: tuple[str, ...]) -> Shape:
        """The tensor's shape; raises CheckpointError if it is missing, UnsupportedModelError for other dtypes."""
        if name not in self.entries:
            raise missing_tensor(self.path, name)
        entry = self.entries[name]
        if entry.dtype not in dtypes:
            raise UnsupportedModelError(
                f"{name} has the data type {entry.dtype}, which is not supported.",
                cure="Use a checkpoint in float32, float16, bfloat16 or INT4 (AutoAWQ, GPTQ, compressed-tensors).",
            )
        return entry.shape

    def read(self, name: str, rows: Span | None = None, cols: Span | None = None) -> Tensor:
        """The tensor, or some of its rows and columns. Raises CheckpointError if its file cannot be read."""
        entry = self.entries[name]
        index = tuple(slice(*(part or (0, None))) for part in ((rows, cols) if cols else (rows,) if rows else ()))
        try:
            handle = self._open(entry.file)
            value: Tensor = handle.get_slice(entry.name)[index] if index else handle.get_tensor(entry.name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{entry.file} cannot be read ({error}).", cure=FETCH_AGAIN) from error
        self._on_read(name, value.nbytes)
        return value

    def scales(self, name: str, rows: Span, cols: Span) -> Tensor:
        """Scales of an INT4 weight: float16 where that is exact, else float32.

        Raises CheckpointError if one is NaN, infinite or 0: a scale of 0 erases its whole group.
        """
        scales = check_finite(name, self.read(name, rows, cols))
        erased = int((scales == 0).sum())
        if erased:
            raise CheckpointError(
                f"{name} holds {erased} scales that are 0, each of which erases a group of weights.",
                cure="Fetch the file again; if it stays so, the checkpoint is broken at its source.",
            )
        return scales_exactly(name, scales, self.report)

    def spellings(self, module: str, fields: Iterable[str]) -> tuple[str, ...]:
        """The module's name as the file spells it, and the canonical one: rules in a config may use either."""
        names = [f"{module}.{field}" for field in fields]
        stored = [self.entries[name].name.rpartition(".")[0] for name in names if name in self]
        return tuple(dict.fromkeys((*stored, module)))

    def _open(self, file: Path) -> Any:
        if file not in self._files:
            self._files[file] = safe_open(str(file), framework="pt")
        return self._files[file]

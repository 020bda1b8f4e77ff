"""A directory with ``config.json`` and safetensors weights: dense, or INT4 in AutoAWQ's format."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from labkit.errors import CheckpointError, UnsupportedModelError
from labkit.model.checkpoint.awq import AWQ_FIELDS, PER_WORD, AwqLayout, Span, check_awq_config
from labkit.model.checkpoint.base import Checkpoint, bounds, group_span
from labkit.model.checkpoint.ranges import check_finite, scales_exactly
from labkit.model.checkpoint.shards import FETCH_AGAIN, Entry, find_tensors, read_json
from labkit.quant.formats import awq_to_int4
from labkit.quant.int4 import Int4Weight

DENSE_DTYPES = ("F32", "F16", "BF16")


class SafetensorsCheckpoint(Checkpoint):
    """See ``Checkpoint``. Only the slices asked for are read from the files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = read_json(path / "config.json")
        if (path / "generation_config.json").is_file():
            self.generation_config = read_json(path / "generation_config.json")
        self.tokenizer_files = path if (path / "tokenizer.json").is_file() else None
        self._entries = find_tensors(path, self.report)
        self.total_bytes = sum(entry.nbytes for entry in self._entries.values())
        self._files: dict[Path, Any] = {}

    def names(self) -> frozenset[str]:
        return self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._entries)

    def tensor(self, name: str, *, rows: slice | None = None) -> Tensor:
        entry = self._dense_entry(name)
        return check_finite(name, self._read(name, bounds(rows, entry.shape[0]) if rows else None))

    def linear(self, module: str, *, rows: slice | None = None, cols: slice | None = None) -> Tensor | Int4Weight:
        kind = self._kind(module)
        if kind == "awq":
            return self._awq(module, rows, cols)
        if kind == "packed":
            raise UnsupportedModelError(
                f"{module} is in compressed-tensors' pack-quantized format, which is not supported yet.",
                cure="Use the AutoAWQ (gemm) version of the model.",
            )
        name = f"{module}.weight"
        outputs, inputs = self._matrix_shape(name)
        return check_finite(name, self._read(name, bounds(rows, outputs), bounds(cols, inputs)))

    def _kind(self, module: str) -> str:
        """Which format the module is in, told by the keys present: real checkpoints mix formats."""
        keys = {"weight": ("weight",), "awq": AWQ_FIELDS, "packed": ("weight_packed",)}
        kinds = [kind for kind, fields in keys.items() if any(self.has(f"{module}.{field}") for field in fields)]
        if not kinds:
            raise self._missing(f"{module}.weight")
        if len(kinds) > 1:
            raise CheckpointError(
                f"{module} is there in two formats: {' and '.join(kinds)}.", cure="Remove the one that is not meant."
            )
        return kinds[0]

    def _awq(self, module: str, rows: slice | None, cols: slice | None) -> Int4Weight:
        layout = self._awq_layout(module)
        outputs, inputs = bounds(rows, layout.outputs), bounds(cols, layout.inputs)
        words, groups = layout.words(outputs), group_span(inputs, layout.group_size)
        columns = words[0] * PER_WORD, words[1] * PER_WORD
        weight = awq_to_int4(
            self._read(f"{module}.qweight", inputs, words),
            self._read(f"{module}.qzeros", groups, words),
            self._read_scales(f"{module}.scales", groups, columns),
        )
        return weight.rows(slice(outputs[0] - columns[0], outputs[1] - columns[0]))

    def _awq_layout(self, module: str) -> AwqLayout:
        group_size = check_awq_config(self.config, module)
        names = [f"{module}.{field}" for field in AWQ_FIELDS]
        for name in names:
            if not self.has(name):
                raise self._missing(name)
        self._dense_entry(names[2])
        for name in names[:2]:
            self._check_dtype(name, ("I32",))
        qweight, qzeros, scales = (self._entries[name].shape for name in names)
        return AwqLayout.of(module, qweight, qzeros, scales, group_size)

    def _read_scales(self, name: str, groups: Span, columns: Span) -> Tensor:
        return scales_exactly(name, check_finite(name, self._read(name, groups, columns)), self.report)

    def _matrix_shape(self, name: str) -> tuple[int, int]:
        shape = self._dense_entry(name).shape
        if len(shape) != 2:
            raise CheckpointError(f"{name} has the shape {list(shape)}, not that of a matrix.", cure=FETCH_AGAIN)
        return shape[0], shape[1]

    def _dense_entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise self._missing(name)
        self._check_dtype(name, DENSE_DTYPES)
        return self._entries[name]

    def _check_dtype(self, name: str, allowed: tuple[str, ...]) -> None:
        dtype = self._entries[name].dtype
        if dtype not in allowed:
            raise UnsupportedModelError(
                f"{name} has the data type {dtype}, which is not supported.",
                cure="Use a checkpoint in float32, float16, bfloat16 or AutoAWQ (gemm).",
            )

    def _read(self, name: str, rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None) -> Tensor:
        entry = self._entries[name]
        index = tuple(slice(*part) for part in (rows, cols) if part)
        try:
            handle = self._open(entry.file)
            value: Tensor = handle.get_slice(entry.name)[index] if index else handle.get_tensor(entry.name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{entry.file} cannot be read ({error}).", cure=FETCH_AGAIN) from error
        self._mark(name, value.nbytes)
        return value

    def _open(self, file: Path) -> Any:
        if file not in self._files:
            self._files[file] = safe_open(str(file), framework="pt")
        return self._files[file]

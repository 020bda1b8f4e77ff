"""A directory with ``config.json`` and safetensors weights: dense, or INT4 as AutoAWQ, GPTQ, AutoRound and
compressed-tensors store it, mixed as the file has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from labkit.errors import CheckpointError
from labkit.model.checkpoint.awq import awq_group_size, read_awq
from labkit.model.checkpoint.base import Checkpoint, bounds, missing_tensor
from labkit.model.checkpoint.compressed_config import scheme_of, without_kv_scales
from labkit.model.checkpoint.compressed_tensors import PACKED_FIELDS, read_packed
from labkit.model.checkpoint.gptq import GPTQ_FIELDS, gptq_settings, read_gptq
from labkit.model.checkpoint.quant_config import Settings, quant_section, words_packing
from labkit.model.checkpoint.ranges import check_finite
from labkit.model.checkpoint.shards import FETCH_AGAIN, Entry, find_tensors, read_json
from labkit.model.checkpoint.stored import DENSE_DTYPES, StoredTensors
from labkit.quant.int4 import Int4Weight

READERS = {"awq": read_awq, "gptq": read_gptq}


class SafetensorsCheckpoint(Checkpoint):
    """See ``Checkpoint``. Only the slices asked for are read from the files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = read_json(path / "config.json")
        if (path / "generation_config.json").is_file():
            self.generation_config = read_json(path / "generation_config.json")
        self.tokenizer_files = path if (path / "tokenizer.json").is_file() else None
        entries = without_kv_scales(find_tensors(path, self.report), self.config, self.report)
        self.total_bytes = sum(entry.nbytes for entry in entries.values())
        self._stored = StoredTensors(path, entries, self.report, self._mark)
        self._names = frozenset(entries)

    def names(self) -> frozenset[str]:
        return self._names

    def tensor(self, name: str, *, rows: slice | None = None) -> Tensor:
        shape = self._stored.shape(name, DENSE_DTYPES)
        return check_finite(name, self._stored.read(name, bounds(rows, shape[0]) if rows else None))

    def linear(self, module: str, *, rows: slice | None = None, cols: slice | None = None) -> Tensor | Int4Weight:
        kind = self._kind(module)
        if kind == "weight":
            return self._dense(module, rows, cols)
        quant = quant_section(self.config)
        read = read_packed if kind == "weight_packed" else READERS[words_packing(quant, module)]
        return read(self._stored, quant, module, rows, cols)

    def _kind(self, module: str) -> str:
        """Which tensor holds the module, told by the keys present: real checkpoints mix formats.

        A key that only goes with another counts where no weight is there at all, so that the missing one is named.
        """
        fields = {field for field in ("weight", *GPTQ_FIELDS, *PACKED_FIELDS) if self.has(f"{module}.{field}")}
        kinds = [kind for kind in ("weight", "qweight", "weight_packed") if kind in fields]
        if len(kinds) > 1:
            raise CheckpointError(
                f"{module} is there in two formats: {' and '.join(kinds)}.", cure="Remove the one that is not meant."
            )
        if not kinds:
            companions = (("qweight", GPTQ_FIELDS), ("weight_packed", PACKED_FIELDS))
            lost = next((kind for kind, of in companions if not fields.isdisjoint(of)), "weight")
            raise missing_tensor(self.path, f"{module}.{lost}")
        return kinds[0]

    def _dense(self, module: str, rows: slice | None, cols: slice | None) -> Tensor:
        name = f"{module}.weight"
        shape = self._stored.shape(name, DENSE_DTYPES)
        if len(shape) != 2:
            raise CheckpointError(f"{name} has the shape {list(shape)}, not that of a matrix.", cure=FETCH_AGAIN)
        return check_finite(name, self._stored.read(name, bounds(rows, shape[0]), bounds(cols, shape[1])))


def check_format(quant: Settings, module: str, fields: Mapping[str, Entry]) -> None:
    """Raises UnsupportedModelError if the config says that a quantized module is in a format that labkit cannot read.

    fields: the module's tensors by the last part of their names; only headers are looked at.
    """
    names = tuple(dict.fromkeys((*(entry.name.rpartition(".")[0] for entry in fields.values()), module)))
    if "weight_packed" in fields:
        scheme_of(quant, module, names)
    elif words_packing(quant, module) == "awq":
        awq_group_size(quant, module, names)
    else:
        gptq_settings(quant, module, names)

"""A GGUF file of the Llama architecture, read as if it were a Hugging Face checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labkit.model.checkpoint.base import Checkpoint, bounds, group_span, missing_tensor
from labkit.model.checkpoint.gguf_header import GgufTensor, read_gguf_header
from labkit.model.checkpoint.gguf_llama import check_supported, hf_config, hf_name, rotary_rows
from labkit.model.checkpoint.ranges import check_finite
from labkit.quant.formats import q4_0_to_int4, q4_1_to_int4, q8_0_to_float
from labkit.quant.int4 import Int4Weight

EMBEDDING = "token_embd.weight"
INT4_TYPES = {"Q4_0": q4_0_to_int4, "Q4_1": q4_1_to_int4}
FLOAT_TYPES = {"F32": torch.float32, "F16": torch.float16}


class GgufCheckpoint(Checkpoint):
    """See ``Checkpoint``. Q4_0 and Q4_1 stay INT4, Q8_0 becomes float32, F32 and F16 stay what they are."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        header = read_gguf_header(path)
        check_supported(header.metadata, frozenset(header.tensors))
        if EMBEDDING not in header.tensors:
            raise missing_tensor(path, EMBEDDING)
        self.gguf_metadata = {k: v for k, v in header.metadata.items() if k.startswith(("tokenizer.", "general."))}
        self.config = hf_config(header.metadata, frozenset(header.tensors), header.tensors[EMBEDDING].shape[0])
        self._tensors = self._renamed(header.tensors)
        self._names = frozenset(self._tensors)
        self.total_bytes = sum(tensor.nbytes for tensor in self._tensors.values())
        # Copy-on-write, so that torch gets writable memory while the file stays as it is.
        self._data = np.memmap(path, np.uint8, "c")

    def names(self) -> frozenset[str]:
        return self._names

    def tensor(self, name: str, *, rows: slice | None = None) -> Tensor:
        value = self._read(name, rows)
        return value.dequantize() if isinstance(value, Int4Weight) else value

    def linear(self, module: str, *, rows: slice | None = None, cols: slice | None = None) -> Tensor | Int4Weight:
        value = self._read(f"{module}.weight", rows)
        span = bounds(cols, value.shape[1])
        if isinstance(value, Int4Weight):
            group_span(span, value.group_size)
            return value.cols(slice(*span))
        return value[:, slice(*span)]

    def _read(self, name: str, rows: slice | None) -> Tensor | Int4Weight:
        if name not in self._tensors:
            raise missing_tensor(self.path, name)
        tensor = self._tensors[name]
        raw = self._raw_rows(name, tensor, rows)
        self._mark(name, raw.nbytes)
        if tensor.type in INT4_TYPES:
            weight = INT4_TYPES[tensor.type](raw)
            check_finite(f"{name} (scales)", weight.groups)
            return weight
        value = q8_0_to_float(raw) if tensor.type == "Q8_0" else raw.contiguous().view(FLOAT_TYPES[tensor.type])
        return check_finite(name, value.reshape(-1, *tensor.shape[1:]))

    def _raw_rows(self, name: str, tensor: GgufTensor, rows: slice | None) -> Tensor:
        """The bytes of some rows, ``[rows, bytes per row]``, in Hugging Face's order."""
        raw = torch.from_numpy(self._data[tensor.offset : tensor.offset + tensor.nbytes]).view(tensor.shape[0], -1)
        start, stop = bounds(rows, tensor.shape[0])
        order = rotary_rows(name, tensor.shape[0], self.config)
        return raw[start:stop] if order is None else raw[order[start:stop]]

    def _renamed(self, tensors: dict[str, GgufTensor]) -> dict[str, GgufTensor]:
        renamed = {hf_name(name): tensor for name, tensor in tensors.items()}
        unknown = sorted(name for name in tensors if hf_name(name) is None)
        if unknown:
            self.report.note(f"Tensors that the Llama architecture does not have are ignored: {', '.join(unknown)}.")
        return {name: tensor for name, tensor in renamed.items() if name is not None}

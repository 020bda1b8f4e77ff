"""The model to be quantized, as 16 or 32-bit tensors whatever the file, one layer at a time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor

from labkit.errors import UnsupportedModelError
from labkit.model.checkpoint import Checkpoint, GgufCheckpoint, open_checkpoint
from labkit.model.checkpoint.ranges import to_half_checked
from labkit.model.config import LlamaConfig, Qwen35Config, parse_config
from labkit.model.llama import LlamaLayer
from labkit.model.qwen3_5 import Qwen35Layer
from labkit.model.weights import WeightSource
from labkit.quant.int4 import Int4Weight

Layer = LlamaLayer | Qwen35Layer


class DenseSource(Checkpoint):
    """A checkpoint without INT4: what a GGUF file holds in blocks of 4 or 8 bits is dequantized to fp16 first.

    Raises UnsupportedModelError for a directory that is quantized already, CheckpointError as ``open_checkpoint`` does.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.inner = open_checkpoint(path)
        self.config, self.generation_config = self.inner.config, self.inner.generation_config
        self.tokenizer_files, self.gguf_metadata = self.inner.tokenizer_files, self.inner.gguf_metadata
        self.report, self.total_bytes = self.inner.report, self.inner.total_bytes
        self.model_config: LlamaConfig | Qwen35Config = parse_config(self.config)
        self.is_gguf = isinstance(self.inner, GgufCheckpoint)
        if not self.is_gguf:
            self._refuse_quantized()

    def names(self) -> frozenset[str]:
        return self.inner.names()

    def tensor(self, name: str, *, rows: slice | None = None) -> Tensor:
        value = self.inner.tensor(name, rows=rows)
        self._mark(name, 0)
        return self._as_half(name, value) if self.is_gguf and value.ndim > 1 else value

    def linear(self, module: str, *, rows: slice | None = None, cols: slice | None = None) -> Tensor:
        value = self.inner.linear(module, rows=rows, cols=cols)
        self._mark(f"{module}.weight", 0)
        dense = value.dequantize() if isinstance(value, Int4Weight) else value
        return self._as_half(f"{module}.weight", dense) if self.is_gguf else dense

    def as_written(self, name: str, value: Tensor) -> Tensor:
        """A tensor that stays unquantized: a matrix in fp16 as far as its range fits, others where that is exact."""
        if value.ndim == 2:
            return to_half_checked(name, value, self.report)
        half = value.half()
        return half if torch.equal(half.float(), value.float()) else value.float()

    def layer(self, number: int) -> Layer:
        """A layer that computes, in fp32. Raises UnsupportedModelError if the file's layer has tensors beside it."""
        source, name = WeightSource(self, self.model_config, torch.float32), f"model.layers.{number}"
        layer: Layer
        if isinstance(self.model_config, Qwen35Config):
            layer = Qwen35Layer(source, name, self.model_config, self.model_config.layer_types[number])
        else:
            layer = LlamaLayer(source, name, self.model_config)
        if left := self._layer_names(number) - self._used:
            raise UnsupportedModelError(
                f"{self.path.name} holds tensors that this architecture does not use, such as {min(left)}.",
                cure="Leaving them out would change the answers: use a checkpoint of a supported architecture.",
            )
        return layer

    def layer_tensors(self, number: int) -> dict[str, Tensor]:
        """All tensors of a layer in fp32, by their name within the layer."""
        prefix = f"model.layers.{number}."
        names = sorted(self._layer_names(number))
        return {name.removeprefix(prefix): self.tensor(name).to(torch.float32, copy=True) for name in names}

    def fingerprint(self) -> str:
        """Tells models apart: a digest of the config and of every byte of the weights. Fewer would not do: a model that
        LoRA weights were merged into has the names, shapes and norms of the one before."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True, default=str).encode())
        for path in [self.path] if self.path.is_file() else sorted(self.path.glob("*.safetensors")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _layer_names(self, number: int) -> set[str]:
        found = {name for name in self.names() if name.startswith(f"model.layers.{number}.")}
        return {name for name in found if not name.endswith("rotary_emb.inv_freq")}  # a table of older files

    def _as_half(self, name: str, value: Tensor) -> Tensor:
        return to_half_checked(name, value, self.report)

    def _refuse_quantized(self) -> None:
        endings = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv")
        found = sorted(name for name in self.names() if name.endswith(endings))
        if found:
            raise UnsupportedModelError(
                f"{self.path.name} is quantized already ({found[0]} and {len(found) - 1} more).",
                cure="Quantize the 16-bit model that it was made from.",
            )

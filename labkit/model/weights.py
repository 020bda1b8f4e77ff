"""From a checkpoint's tensors to the layers of a model: one method for each kind of thing a layer is made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.errors import CheckpointError
from labkit.model.checkpoint.base import Checkpoint
from labkit.model.checkpoint.ranges import to_half_checked
from labkit.model.checkpoint.tied import EMBEDDING, head_is_tied
from labkit.model.config import ModelConfig
from labkit.model.layers import Embedding, Projection, RMSNorm, SwiGLU
from labkit.model.leftovers import Leftovers
from labkit.ops.linear import Linear, Workspace, make_linear
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight

Progress = Callable[[str, int, int], None]  # what is going on, bytes so far, bytes in all
Weight = Tensor | Int4Weight | Int8Weight


class WeightSource:
    """Reads weights in the precision that the model will compute with.

    dtype: of the activations. Under float32 everything stays exact; otherwise dense matrices become fp16, unless
    that would lose range, and norms and other vectors stay fp32.
    quantize_leftovers: "int4" or "int8" packs dense matrices; "none" keeps them. Raises ConfigError for another.
    device: where the weights will lie.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        dtype: torch.dtype,
        progress: Progress | None = None,
        quantize_leftovers: str = "none",
        device: torch.device | str = "cpu",
    ) -> None:
        self.checkpoint, self.config, self.dtype, self.device = checkpoint, config, dtype, torch.device(device)
        self.workspace = Workspace()
        self.linears: dict[str, Linear] = {}
        self.leftovers = Leftovers(quantize_leftovers, dtype, checkpoint.report)
        self._progress = progress
        self._table: Tensor | None = None

    def vector(self, name: str, *shape: int) -> Tensor:
        """A small tensor (norm weight, decay, bias, convolution) in fp32; what half could not hold is reported.

        Raises CheckpointError if it has another shape.
        """
        tensor = self._read(name)
        self._expect(name, tensor.shape, shape)
        if self.dtype != torch.float32:
            to_half_checked(name, tensor, self.checkpoint.report)
        self._report_progress()
        return tensor.to(torch.float32, copy=True)  # in a file it may lie at any multiple of 8 bytes: kernels want 16

    def norm(self, name: str, size: int, *, zero_centered: bool = False) -> RMSNorm:
        """The RMSNorm over ``size`` elements whose weight is ``name.weight``; zero-centred weights get their 1 here."""
        weight = self.vector(f"{name}.weight", size)
        return RMSNorm(weight + 1 if zero_centered else weight, self.config.rms_norm_eps)

    def projection(self, inputs: int, outputs: dict[str, int]) -> Projection:
        """Modules that read the same ``inputs`` elements, side by side; neighbours of one format become one matrix.

        outputs: module name -> rows, in order. Raises CheckpointError if a weight has another shape.
        """
        parts: list[tuple[list[str], Weight]] = []
        for module, rows in outputs.items():
            stored = self._linear_weight(module)
            self._expect(module, stored.shape, (rows, inputs))
            weight = self.leftovers.pack(module, stored)
            joined = _join(parts[-1][1], weight) if parts else None
            if joined is None:
                parts.append(([module], weight))
            else:
                parts[-1] = ([*parts[-1][0], module], joined)
        return Projection([self._make(" + ".join(names), weight) for names, weight in parts])

    def swiglu(self, name: str) -> SwiGLU:
        """The MLP ``name`` with its gate, up and down projections."""
        width, inner = self.config.hidden_size, self.config.intermediate_size
        gate_up = self.projection(width, {f"{name}.gate_proj": inner, f"{name}.up_proj": inner})
        return SwiGLU(gate_up, self.projection(inner, {f"{name}.down_proj": width}))

    def embedding(self) -> Embedding:
        """The token embedding."""
        return Embedding(self._embedding_table(), self.dtype)

    def head(self) -> Projection:
        """The output head: its own matrix, or the embedding's (or a packed copy of it) where the two are tied."""
        if not head_is_tied(self.checkpoint):
            return self.projection(self.config.hidden_size, {"lm_head": self.config.vocab_size})
        weight = self.leftovers.tied_head(self._embedding_table())
        return Projection([self._make("lm_head (tied to the embedding)", weight)])

    def _embedding_table(self) -> Tensor:
        if self._table is None:
            self._table = self._dense(EMBEDDING, self._read(EMBEDDING))
            self._expect(EMBEDDING, self._table.shape, (self.config.vocab_size, self.config.hidden_size))
        return self._table

    def _linear_weight(self, module: str) -> Tensor | Int4Weight:
        weight = self.checkpoint.linear(module).to(self.device)
        self._report_progress()
        return weight if isinstance(weight, Int4Weight) else self._dense(f"{module}.weight", weight)

    def _read(self, name: str) -> Tensor:
        return self.checkpoint.tensor(name).to(self.device)

    def _dense(self, name: str, weight: Tensor) -> Tensor:
        if self.dtype == torch.float32:
            return weight.float()
        return to_half_checked(name, weight, self.checkpoint.report)

    def _make(self, name: str, weight: Weight) -> Linear:
        self.linears[name] = make_linear(weight, self.dtype, self.workspace)
        return self.linears[name]

    def _expect(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if tuple(shape) != expected:
            raise CheckpointError(
                f"{name} has shape {list(shape)}; config.json asks for {list(expected)}.",
                cure="Check that config.json belongs to these weights.",
            )

    def _report_progress(self) -> None:
        if self._progress:
            self._progress(
                f"Loading {self.checkpoint.path.name}", self.checkpoint.bytes_read, self.checkpoint.total_bytes
            )


def _join(a: Weight, b: Weight) -> Weight | None:
    """Both as one matrix, or None if their formats differ."""
    if isinstance(a, Int4Weight) and isinstance(b, Int4Weight):
        return Int4Weight.cat([a, b]) if Int4Weight.can_cat([a, b]) else None
    if isinstance(a, Int8Weight) and isinstance(b, Int8Weight):
        return Int8Weight.cat([a, b]) if Int8Weight.can_cat([a, b]) else None
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.cat([a, b]) if a.dtype == b.dtype and a.shape[1] == b.shape[1] else None
    return None

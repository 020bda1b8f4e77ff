"""Run one layer on the calibration text and keep of every projection's input what the searches need."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.awq.source import Layer
from labkit.device import use_executor
from labkit.model.cache import make_cache
from labkit.model.config import ModelConfig
from labkit.model.forward_batch import ForwardBatch, SequenceChunk
from labkit.model.layers import Projection, Rope
from labkit.model.llama import LlamaLayer
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.silu_mul import silu_mul
from labkit.quant.kv import KVFormat

MOST_ROWS = 512  # inputs kept as they are, spread over the calibration text


class Inputs:
    """What is known of the input x [T, K] of a projection after T tokens.

    mean: fp32 [K], the mean of |x|. gram: fp32 [K / g, g, g], x^T x within each group of g inputs, over all tokens;
    None where g does not divide K. rows: fp32 [R, K], every ``step``-th token's input.
    """

    def __init__(self, group_size: int, step: int) -> None:
        self._group_size, self._step = group_size, step
        self._tokens, self._kept = 0, list[Tensor]()
        self._sum: Tensor | None = None
        self.gram: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """Take in fp32 [T, K]."""
        total = x.abs().sum(0)
        self._sum = total if self._sum is None else self._sum + total
        self._kept.append(x[-self._tokens % self._step :: self._step].clone())
        self._tokens += len(x)
        if x.shape[1] % self._group_size == 0:
            blocks = x.unflatten(1, (-1, self._group_size)).transpose(0, 1)
            gram = blocks.mT @ blocks
            self.gram = gram if self.gram is None else self.gram.add_(gram)

    @property
    def mean(self) -> Tensor:
        assert self._sum is not None
        return self._sum / self._tokens

    @property
    def rows(self) -> Tensor:
        return torch.cat(self._kept)


class Observed(Projection):
    """A projection that shows its input to ``inputs``; nothing is fused, so that no input passes unseen."""

    def __init__(self, projection: Projection, inputs: Inputs) -> None:
        super().__init__(projection.parts)
        self.inputs = inputs

    def __call__(self, x: Tensor) -> Tensor:
        self.inputs.add(x)
        return super().__call__(x)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual + self(x)

    def silu_mul(self, x: Tensor) -> Tensor:
        return silu_mul(self(x))


def watch(layer: Layer, group_size: int, step: int) -> dict[str, Inputs]:
    """Watch the projections of a layer from now on; their inputs by the name of the first module that reads them."""
    seen: dict[str, Inputs] = {}

    def watched(name: str, projection: Projection) -> Observed:
        seen[name] = Inputs(group_size, step)
        return Observed(projection, seen[name])

    layer.mlp.gate_up = watched("mlp.gate_proj", layer.mlp.gate_up)
    layer.mlp.down = watched("mlp.down_proj", layer.mlp.down)
    if layer.attention is not None:
        layer.attention.qkv = watched("self_attn.q_proj", layer.attention.qkv)
        layer.attention.out = watched("self_attn.o_proj", layer.attention.out)
    elif not isinstance(layer, LlamaLayer) and layer.gdn is not None:
        layer.gdn.qkvz = watched("linear_attn.in_proj_qkv", layer.gdn.qkvz)
        layer.gdn.out = watched("linear_attn.out_proj", layer.gdn.out)
    return seen


class LayerRunner:
    """Runs layers on windows of one length, each window a sequence of its own, from position 0: states begin empty."""

    def __init__(self, config: ModelConfig, window: int) -> None:
        self._config, pages = config, -(-window // PAGE_SIZE)
        self._batch = ForwardBatch([SequenceChunk([0] * window, 0, list(range(1, pages + 1)), 0)])
        self._rope = Rope(config.rope)(self._batch.positions)
        caches = make_cache(config, pages, 1, torch.float32, KVFormat(torch.float32))
        self._caches = dict(zip(config.layer_types, caches, strict=True))  # one of each kind is enough

    def run(self, layer: Layer, number: int, hidden: Tensor) -> Tensor:
        """hidden: fp32 [T, D], one window; the layer's output, [T, D]."""
        cache = self._caches[self._config.layer_types[number]]
        with use_executor("torch"):
            return layer(hidden.clone(), self._rope, cache, self._batch)  # type: ignore[arg-type]

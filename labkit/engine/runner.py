"""Runs the model on a batch and returns the logits that somebody asked for."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.device import use_executor
from labkit.device.image import find_image
from labkit.engine.batch import Batch, Chunk
from labkit.engine.placement import KERNEL_EXECUTORS
from labkit.errors import UnsupportedModelError
from labkit.model.cache import make_cache
from labkit.model.config import ModelConfig
from labkit.model.forward_batch import ForwardBatch, SequenceChunk
from labkit.model.loader import Model
from labkit.ops.ladders import LADDERS
from labkit.ops.layout import HEAD_DIMS
from labkit.ops.linear_candidates import PRODUCTS, Build
from labkit.ops.linear_kernels import KernelLinear
from labkit.ops.sparse_settings import SparseSettings
from labkit.quant.kv import KVFormat


@dataclass(frozen=True)
class StepLogits:
    """What a step produced.

    sampled: the chunks that yield a token, and their logits fp32 [len(sampled), V], where the model lies.
    every_row: sequence id -> logits of all rows of its chunk, fp32 [length, V] in CPU memory, where asked for.
    """

    sampled: list[Chunk]
    logits: Tensor
    every_row: dict[int, Tensor]


class Runner:
    """Owns the model and its caches, which lie where the model's weights do.

    num_pages: pages that the scheduler hands out, numbered from 0; slots: running sequences at most.
    executor: where the operations run, as ``use_executor`` takes it. sparse: what prefill may leave out; None: nothing.

    Raises, for the executors sim and cuda, UnsupportedModelError for heads of a size that no kernel is built for, and
    KernelBuildError where a kernel that the model needs cannot be had.
    """

    def __init__(
        self,
        model: Model,
        num_pages: int,
        slots: int,
        dtype: torch.dtype,
        kv_format: KVFormat,
        executor: str = "auto",
        sparse: SparseSettings | None = None,
    ) -> None:
        self.model, self.executor, self.sparse = model, executor, sparse
        if executor in KERNEL_EXECUTORS:
            check_heads(model.config, executor)
            _check_kernels(model, kv_format, sparse is not None)
        self.cache = make_cache(model.config, num_pages, slots, dtype, kv_format, self.device)

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.model.embed.table.device

    @torch.inference_mode()
    def run(self, batch: Batch, every_row_of: Container[int] = ()) -> StepLogits:
        """Compute the batch's tokens; every_row_of: sequence ids that want the logits of all their rows."""
        with use_executor(self.executor):
            return self._run(batch, every_row_of)

    def _run(self, batch: Batch, every_row_of: Container[int]) -> StepLogits:
        pairs = [(chunk, _sequence_chunk(chunk)) for chunk in batch.chunks]
        pairs.sort(key=lambda pair: not pair[1].decodes)  # single tokens go together, in front
        chunks = [chunk for chunk, _ in pairs]
        forward = ForwardBatch([made for _, made in pairs], self.device, self.sparse)
        hidden = self.model(forward, self.cache)
        sampled = [chunk for chunk in chunks if chunk.samples]
        logits = self._logits(hidden[forward.sampled_rows]) if sampled else torch.empty(0)
        every_row = {
            chunk.seq.seq_id: self._logits(hidden[last - chunk.length + 1 : last + 1]).cpu()
            for chunk, last in zip(chunks, forward.last_rows, strict=True)
            if chunk.seq.seq_id in every_row_of
        }
        return StepLogits(sampled, logits, every_row)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden).float()


def check_heads(config: ModelConfig, executor: str) -> None:
    """Raises UnsupportedModelError for a model whose heads the attention kernels are not built for."""
    if config.head_dim not in HEAD_DIMS:
        *most, last = HEAD_DIMS
        built = f"{', '.join(map(str, most))} and {last}"
        message = f"The model has heads of {config.head_dim} elements; the attention kernels are built for {built}."
        raise UnsupportedModelError(message, cure=f'Executor {executor} cannot run it: use executor "torch".')


def _check_kernels(model: Model, kv_format: KVFormat, sparse: bool) -> None:
    """Have every kernel of the model before the first request: a lack of one would fail each of them.

    Those of the linear layers depend on the weights, so the layers name them; the configuration says the others.
    """
    needed = [
        Build(ladder.op, rung, macros)
        for ladder in LADDERS.values()
        if ladder.op not in PRODUCTS and (sparse or ladder.op != "sparse_scores")
        for macros in ladder.specialisations(model.config, 1, kv_format.name)
        for rung in ladder.in_use
    ]
    for linear in model.linears.values():
        needed += linear.builds if isinstance(linear, KernelLinear) else []
    for build in {str(build): build for build in needed}.values():
        find_image(*build)


def _sequence_chunk(chunk: Chunk) -> SequenceChunk:
    """Page 0 of the model's pool is the padding page: the scheduler's pages start behind it."""
    seq = chunk.seq
    assert seq.slot is not None
    tokens = seq.token_ids(chunk.start, chunk.start + chunk.length)
    pages = [page + 1 for page in seq.pages]
    return SequenceChunk(tokens, chunk.start, pages, seq.slot, chunk.samples, chunk.sparse)

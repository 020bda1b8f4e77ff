"""Runs the model on a batch and returns the logits that somebody asked for."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.device import use_executor
from labkit.device.image import find_image
from labkit.engine.batch import Batch, Chunk
from labkit.model.cache import make_cache
from labkit.model.forward_batch import ForwardBatch, SequenceChunk
from labkit.model.loader import Model
from labkit.ops.ladders import LADDERS
from labkit.ops.linear_candidates import PRODUCTS, Build
from labkit.ops.linear_kernels import KernelLinear
from labkit.quant.kv import KVFormat


@dataclass(frozen=True)
class StepLogits:
    """What a step produced.

    sampled: the chunks that yield a token, and their logits fp32 [len(sampled), V].
    every_row: sequence id -> logits of all rows of its chunk, fp32 [length, V], where asked for.
    """

    sampled: list[Chunk]
    logits: Tensor
    every_row: dict[int, Tensor]


class Runner:
    """Owns the model and its caches.

    num_pages: pages that the scheduler hands out, numbered from 0; slots: running sequences at most.
    executor: where the operations run, as ``use_executor`` takes it.

    Raises KernelBuildError for the executor sim where a kernel that the model needs cannot be had.
    """

    def __init__(
        self,
        model: Model,
        num_pages: int,
        slots: int,
        dtype: torch.dtype,
        kv_format: KVFormat,
        executor: str = "auto",
    ) -> None:
        self.model, self.executor = model, executor
        if executor == "sim":
            _check_kernels(model, kv_format)
        self.cache = make_cache(model.config, num_pages, slots, dtype, kv_format)

    @torch.inference_mode()
    def run(self, batch: Batch, every_row_of: Container[int] = ()) -> StepLogits:
        """Compute the batch's tokens; every_row_of: sequence ids that want the logits of all their rows."""
        with use_executor(self.executor):
            return self._run(batch, every_row_of)

    def _run(self, batch: Batch, every_row_of: Container[int]) -> StepLogits:
        chunks = sorted(batch.chunks, key=lambda chunk: chunk.length > 1)  # single tokens go together, in front
        forward = ForwardBatch([_sequence_chunk(chunk) for chunk in chunks])
        hidden = self.model(forward, self.cache)
        last = forward.last_rows.tolist()
        sampled = [i for i, chunk in enumerate(chunks) if chunk.samples]
        logits = self._logits(hidden[[last[i] for i in sampled]]) if sampled else torch.empty(0)
        every_row = {
            chunk.seq.seq_id: self._logits(hidden[end - chunk.length + 1 : end + 1])
            for chunk, end in zip(chunks, last, strict=True)
            if chunk.seq.seq_id in every_row_of
        }
        return StepLogits([chunks[i] for i in sampled], logits, every_row)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden).float()


def _check_kernels(model: Model, kv_format: KVFormat) -> None:
    """Have every kernel of the model before the first request: a lack of one would fail each of them.

    Those of the linear layers depend on the weights, so the layers name them; the configuration says the others.
    """
    needed = [
        Build(ladder.op, ladder.shipped, macros)
        for ladder in LADDERS.values()
        if ladder.op not in PRODUCTS
        for macros in ladder.specialisations(model.config, 1, kv_format.name)
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
    return SequenceChunk(tokens, chunk.start, [page + 1 for page in seq.pages], seq.slot)

"""Settings of an engine, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from labkit.engine.placement import EXECUTORS, KERNEL_DTYPES, KERNEL_EXECUTORS, Placement, place_engine
from labkit.engine.scheduler_config import check_budgets
from labkit.errors import ConfigError
from labkit.model.leftovers import CHOICES as QUANTIZE_LEFTOVERS
from labkit.ops.sparse_settings import SparseSettings
from labkit.quant.kv import KVFormat

DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class EngineConfig:
    """What to load and how much it may hold.

    model: a directory, a .gguf file, or a name (smollm2, labkit-tiny, org/name).
    executor: where the operations run. "cuda": on an NVIDIA GPU, which then holds weights, pages and states. "sim":
        the same kernels on the simulator, thousands of times slower. "torch": all in torch, on the CPU. "auto" takes
        the GPU where one can be used and dtype lets it, else torch. `labkit doctor` lists what has no kernel yet and
        runs in torch everywhere.
    dtype: of the activations. "auto" is bf16 in torch on a CPU, fp16 where kernels run, which take no other; "float32"
        is the exact path.
    kv_cache_dtype: "auto" (the model dtype), "fp16", "int8", "int4" or "k8v4" (keys in INT8, values in INT4).
    max_seq_len: tokens of prompt and output together; None: the model's own limit, at most 8192.
    decode_batch_size: sequences that run at the same time.
    num_pages: KV pages of 64 tokens; None: as many as the batch can fill and the memory holds (see engine.sizing).
    prefill_tokens, mixed_prefill_tokens: prefill budget of a step, alone and beside decodes.
    tp_size: GPUs that share the model.
    quantize_leftovers: "int4" or "int8" packs the matrices that the checkpoint has in 16 bits, and the output head,
        while it is loaded; "none" leaves them. `labkit eval perplexity --quantize-leftovers` measures the cost.
    sparse_prefill: prefill attends to a choice of pages where the context has sparse_threshold tokens or more (8,192);
        decoding always to all. It changes the keys and values that are stored, so it is the engine's setting, not a
        request's, and must be part of the key by which a prefix cache finds pages. What a prompt keeps depends on the
        prompt alone: its tiles of 64 rows lie at its multiples of 64 and it is cut there only, so both budgets must
        hold a tile; what was generated attends to everything, also when it is recomputed after a preemption.
    sparse_mass, sparse_sink, sparse_recent, sparse_threshold: see ``SparseSettings``; None: its own. They need
        sparse_prefill. `labkit bench sparse` shows what they cost and keep.
    """

    model: str | Path = "smollm2"
    executor: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_seq_len: int | None = None
    decode_batch_size: int = 8
    num_pages: int | None = None
    prefill_tokens: int = 4096
    mixed_prefill_tokens: int = 1024
    tp_size: int = 1
    quantize_leftovers: str = "none"
    sparse_prefill: bool = False
    sparse_mass: float | None = None
    sparse_sink: int | None = None
    sparse_recent: int | None = None
    sparse_threshold: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, (str, Path)) or not str(self.model):
            raise ConfigError(f"model is {self.model!r}.", cure="Give a directory, a .gguf file or a model's name.")
        _one_of("dtype", self.dtype, DTYPES)
        KVFormat.named(self.kv_cache_dtype, torch.float16)
        _one_of("executor", self.executor, EXECUTORS)
        _one_of("quantize_leftovers", self.quantize_leftovers, QUANTIZE_LEFTOVERS)
        if self.executor in KERNEL_EXECUTORS and self.dtype not in KERNEL_DTYPES:
            cure = f"The kernels, which executor {self.executor} runs, compute in float16."
            raise ConfigError(f"dtype is {self.dtype!r}.", cure=cure)
        for name in ("decode_batch_size", "prefill_tokens", "mixed_prefill_tokens"):
            _count(name, getattr(self, name))
        for name in ("max_seq_len", "num_pages"):
            if getattr(self, name) is not None:
                _count(name, getattr(self, name))
        if isinstance(self.tp_size, bool) or self.tp_size != 1:
            raise ConfigError(f"tp_size is {self.tp_size!r}.", cure="This version of labkit runs on one device: use 1.")
        self._check_sparse()

    def _check_sparse(self) -> None:
        if not isinstance(self.sparse_prefill, bool):
            raise ConfigError(f"sparse_prefill is {self.sparse_prefill!r}.", cure="Give True or False.")
        given = [f"sparse_{name}" for name in self._sparse_given()]
        if given and not self.sparse_prefill:
            message = f"{' and '.join(given)} without sparse_prefill."
            raise ConfigError(message, cure="Add sparse_prefill (--sparse-prefill), or leave them out.")
        if self.sparse:  # which looks at the values
            check_budgets(self.prefill_tokens, self.mixed_prefill_tokens)

    def _sparse_given(self) -> dict[str, Any]:
        """The settings of sparse prefill that were given, by their names there."""
        names = ("mass", "sink", "recent", "threshold")
        return {name: value for name in names if (value := getattr(self, f"sparse_{name}")) is not None}

    @property
    def sparse(self) -> SparseSettings | None:
        """How prefill leaves pages out; None: it does not. Raises ConfigError for values out of range."""
        return SparseSettings(**self._sparse_given()) if self.sparse_prefill else None

    @cached_property
    def placement(self) -> Placement:
        """The executor and device that this configuration comes to on this machine, found out once.

        Raises ExecutorError for "cuda" on a machine without a usable GPU.
        """
        return place_engine(self.executor, self.dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of the activations. Raises ExecutorError as ``placement`` does."""
        on_kernels = self.placement.executor in KERNEL_EXECUTORS
        return DTYPES[self.dtype] or (torch.float16 if on_kernels else torch.bfloat16)

    @property
    def kv_format(self) -> KVFormat:
        """What the KV pages hold."""
        return KVFormat.named(self.kv_cache_dtype, self.torch_dtype)


def _one_of(name: str, value: Any, allowed: Any) -> None:
    if value not in tuple(allowed):
        raise ConfigError(f"{name} is {value!r}.", cure=f"Choose one of {', '.join(allowed)}.")


def _count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}.", cure="Give a whole number from 1.")

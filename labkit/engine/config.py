"""Settings of an engine, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.errors import ConfigError, ExecutorError
from labkit.model.leftovers import CHOICES as QUANTIZE_LEFTOVERS
from labkit.quant.kv import KVFormat

DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class EngineConfig:
    """What to load and how much it may hold.

    model: a directory, a .gguf file, or a name (smollm2, labkit-tiny, org/name).
    executor: where the operations run; "auto" takes the best one here. "sim" runs those that have a CUDA kernel on
        the simulator, thousands of times slower than a GPU; the others run in torch.
    dtype: of the activations. "auto" is bf16 on a CPU, fp16 on the simulator; "float32" is the exact path.
    kv_cache_dtype: "auto" (the model dtype), "fp16", "int8", "int4" or "k8v4" (keys in INT8, values in INT4).
    max_seq_len: tokens of prompt and output together; None: the model's own limit, at most 8192.
    decode_batch_size: sequences that run at the same time.
    num_pages: KV pages of 64 tokens; None: as many as the batch can fill, within a quarter of the free memory.
    prefill_tokens, mixed_prefill_tokens: prefill budget of a step, alone and beside decodes.
    tp_size: GPUs that share the model.
    quantize_leftovers: "int4" or "int8" packs the matrices that the checkpoint has in 16 bits, and the output head,
        while it is loaded; "none" leaves them. `labkit eval perplexity --quantize-leftovers` measures the cost.
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

    def __post_init__(self) -> None:
        if not isinstance(self.model, (str, Path)) or not str(self.model):
            raise ConfigError(f"model is {self.model!r}.", cure="Give a directory, a .gguf file or a model's name.")
        _one_of("dtype", self.dtype, DTYPES)
        KVFormat.named(self.kv_cache_dtype, self.torch_dtype)
        _one_of("executor", self.executor, ("auto", "torch", "sim", "cuda"))
        _one_of("quantize_leftovers", self.quantize_leftovers, QUANTIZE_LEFTOVERS)
        if self.executor == "cuda":
            raise ExecutorError(
                "The engine does not run on the executor cuda in this version of labkit.",
                cure='Use executor "auto", "torch" or "sim"; single operations do run on a GPU.',
            )
        if self.executor == "sim" and self.dtype not in ("auto", "float16"):
            raise ConfigError(
                f"dtype is {self.dtype!r}.", cure="The kernels, which executor sim runs, compute in float16."
            )
        for name in ("decode_batch_size", "prefill_tokens", "mixed_prefill_tokens"):
            _count(name, getattr(self, name))
        for name in ("max_seq_len", "num_pages"):
            if getattr(self, name) is not None:
                _count(name, getattr(self, name))
        if isinstance(self.tp_size, bool) or self.tp_size != 1:
            raise ConfigError(f"tp_size is {self.tp_size!r}.", cure="This version of labkit runs on one device: use 1.")

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of the activations."""
        return DTYPES[self.dtype] or (torch.float16 if self.executor == "sim" else torch.bfloat16)

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

"""The terms of the memory budget of one rank, in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from labkit.bench.fit_modules import COLS, KV_ROWS, WHOLE, Module
from labkit.bench.fit_report import FitRequest
from labkit.bench.fit_weights import WeighedModel, Weight
from labkit.model.config import LlamaConfig, Qwen35Config
from labkit.quant.kv import KVFormat


def weight_bytes(weights: Iterable[Weight], kv_heads: int, request: FitRequest) -> int:
    """Bytes that one rank holds of these weights."""
    return math.ceil(sum(_rank_bytes(weight, kv_heads, request) for weight in weights))


def _rank_bytes(weight: Weight, kv_heads: int, request: FitRequest) -> float:
    stored = weight.nbytes if request.packing == "file" else weight.labkit_bytes
    return stored * _share(weight.module, request.gpus, kv_heads)


def _share(module: Module, ranks: int, kv_heads: int) -> float:
    if module.split == WHOLE:
        return 1.0
    return 1 / min(ranks, kv_heads) if module.split == KV_ROWS else 1 / ranks


def kv_bytes_per_token(config: LlamaConfig | Qwen35Config, request: FitRequest) -> int:
    """Keys and values of one token in the full-attention layers (and the MTP block's, if it runs) of one rank.

    Raises ConfigError for heads that the KV dtype cannot hold.
    """
    heads = max(1, config.num_key_value_heads // request.gpus)
    layers = config.num_attention_layers
    if request.mtp and isinstance(config, Qwen35Config):
        layers += config.num_mtp_layers
    return layers * heads * KVFormat.named(request.kv_cache_dtype, torch.float16).bytes_per_head(config.head_dim)


def state_bytes_per_sequence(config: LlamaConfig | Qwen35Config, ranks: int) -> int:
    """Gated DeltaNet state of one sequence on one rank: fp32 ``[heads, dk, dv]`` and the last inputs of the
    convolution in half precision, for every linear layer. Llama has none.
    """
    if not isinstance(config, Qwen35Config):
        return 0
    heads = config.linear_num_value_heads // ranks
    recurrent = 4 * heads * config.linear_key_head_dim * config.linear_value_head_dim
    convolution = 2 * (config.linear_conv_kernel_dim - 1) * config.conv_dim // ranks
    return config.num_linear_layers * (recurrent + convolution)


def split_problems(model: WeighedModel, ranks: int) -> Iterator[str]:
    """Why the model cannot be divided over that many ranks; nothing if it can."""
    yield from size_problems(model.geometry.config, ranks)
    experts = model.geometry.experts
    if experts is not None and experts.shared_intermediate % ranks:
        yield f"shared_expert_intermediate_size = {experts.shared_intermediate} cannot be divided over {ranks} ranks."
    for weight in model.weights:
        if weight.module.split == COLS and (weight.module.shape[-1] // ranks) % weight.group_size:
            yield f"{weight.module.name} has INT4 groups of {weight.group_size} that {ranks} ranks would cut."


def size_problems(config: LlamaConfig | Qwen35Config, ranks: int) -> Iterator[str]:
    """Heads and rows that cannot be divided over that many ranks; a KV head may be shared by a whole number of them."""
    names = ["vocab_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"]
    if isinstance(config, Qwen35Config) and config.num_linear_layers:
        names += ["linear_num_key_heads", "linear_num_value_heads"]
    for name in names:
        size = getattr(config, name)
        if size % ranks and not (name == "num_key_value_heads" and ranks % size == 0):
            yield f"{name} = {size} cannot be divided over {ranks} ranks."

"""Everything the model remembers between steps: KV pages of attention layers, states of Gated DeltaNet layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.model.config import FULL_ATTENTION, ModelConfig, Qwen35Config
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import KVPages
from labkit.quant.kv import KVFormat


@dataclass
class GdnState:
    """One layer's states, a slot per running sequence.

    ssm: fp32 [slots, Hv, dk, dv]; conv: [slots, W - 1, channels] the last inputs of the convolution, model dtype.
    """

    ssm: Tensor
    conv: Tensor

    @classmethod
    def zeros(
        cls, slots: int, config: Qwen35Config, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> GdnState:
        """Of sequences that have seen nothing."""
        heads, dk, dv = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
        history = config.linear_conv_kernel_dim - 1
        ssm = torch.zeros(slots, heads, dk, dv, device=device)
        return cls(ssm, torch.zeros(slots, history, config.conv_dim, dtype=dtype, device=device))


ModelCache = list[KVPages | GdnState]  # one entry per layer


def make_cache(
    config: ModelConfig,
    num_pages: int,
    slots: int,
    dtype: torch.dtype,
    kv_format: KVFormat,
    device: torch.device | str = "cpu",
) -> ModelCache:
    """Caches for every layer, on ``device``.

    Page 0 comes on top of ``num_pages``: it pads page tables and is never handed out.
    """
    cache: ModelCache = []
    for kind in config.layer_types:
        if kind == FULL_ATTENTION:
            cache.append(KVPages.zeros(num_pages + 1, config.num_key_value_heads, config.head_dim, kv_format, device))
        else:
            assert isinstance(config, Qwen35Config)
            cache.append(GdnState.zeros(slots, config, dtype, device))
    return cache


def kv_bytes_per_token(config: ModelConfig, kv_format: KVFormat) -> int:
    """Bytes of K and V of one token over all attention layers, scales included."""
    heads = config.num_attention_layers * config.num_key_value_heads
    return heads * kv_format.bytes_per_head(config.head_dim)


def page_bytes(config: ModelConfig, kv_format: KVFormat) -> int:
    """Bytes of one page of 64 tokens over all attention layers."""
    return PAGE_SIZE * kv_bytes_per_token(config, kv_format)


def state_bytes_per_slot(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one sequence's Gated DeltaNet state over all layers."""
    if not isinstance(config, Qwen35Config):
        return 0
    ssm = config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim * 4
    conv = (config.linear_conv_kernel_dim - 1) * config.conv_dim * dtype.itemsize
    return config.num_linear_layers * (ssm + conv)

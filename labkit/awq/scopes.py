"""Which projections read the same input, and what in front of them can absorb a scale of that input.

Multiplying the weights of input j by s_j and dividing the input by s_j changes nothing, as long as the division moves
into what makes the input:

    norm -> q, k, v | gate, up | the projections of Gated DeltaNet     the norm's weight is divided
    v_proj -> o_proj      attention (and its sigmoid gate) is linear in v: v's rows are divided. With grouped queries
                          several heads of o_proj's input come from one head of v: they share their scales.
    up_proj -> down_proj  silu(gate) * up is linear in up: its rows are divided
    norm -> out_proj      Gated DeltaNet's output norm has one weight for all heads: they share their scales
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.model.config import FULL_ATTENTION, ModelConfig, Qwen35Config


@dataclass(frozen=True, eq=False)
class Scope:
    """Projections that share an input.

    readers: the number of outputs of each, by its name within the layer.
    absorber: the tensor of the layer that is divided, a norm's weight [B] or the weight of a linear module [B, K'].
    tie: int64 [K], the entry of the absorber that makes input j. zero_centered: whether the norm adds 1 to its weight.
    """

    readers: Mapping[str, int]
    absorber: str
    tie: Tensor
    zero_centered: bool = False

    @property
    def first(self) -> str:
        """The first reader's name, which stands for the scope."""
        return next(iter(self.readers))


def scopes_of(config: ModelConfig, layer: int) -> list[Scope]:
    """The scopes of a layer, in the order in which the model computes them."""
    qwen = isinstance(config, Qwen35Config)
    width = torch.arange(config.hidden_size)
    mixer = _attention(config, width, qwen) if config.layer_types[layer] == FULL_ATTENTION else _gdn(config, width)
    inner = config.intermediate_size
    gate_up = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
    return [
        *mixer,
        Scope(gate_up, "post_attention_layernorm.weight", width, qwen),
        Scope({"mlp.down_proj": config.hidden_size}, "mlp.up_proj.weight", torch.arange(inner)),
    ]


def _attention(config: ModelConfig, width: Tensor, zero_centered: bool) -> list[Scope]:
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    gates = 2 if isinstance(config, Qwen35Config) else 1  # q_proj also makes the output gate
    rows = {"q": gates * heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    readers = {f"self_attn.{name}_proj": count for name, count in rows.items()}
    tie = (torch.arange(heads)[:, None] // (heads // kv_heads) * dim + torch.arange(dim)).flatten()
    return [
        Scope(readers, "input_layernorm.weight", width, zero_centered),
        Scope({"self_attn.o_proj": config.hidden_size}, "self_attn.v_proj.weight", tie),
    ]


def _gdn(config: ModelConfig, width: Tensor) -> list[Scope]:
    assert isinstance(config, Qwen35Config)
    heads = config.linear_num_value_heads
    rows = {"qkv": config.conv_dim, "z": config.value_dim, "b": heads, "a": heads}
    readers = {f"linear_attn.in_proj_{name}": count for name, count in rows.items()}
    tie = torch.arange(config.value_dim) % config.linear_value_head_dim
    return [
        Scope(readers, "input_layernorm.weight", width, True),
        Scope({"linear_attn.out_proj": config.hidden_size}, "linear_attn.norm.weight", tie),
    ]

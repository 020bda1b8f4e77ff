"""The Llama architecture (Touvron et al. 2023, arXiv:2302.13971), which SmolLM2 shares.

A layer: x += attention(norm(x)); x += mlp(norm(x)).
"""

from __future__ import annotations

from torch import Tensor

from labkit.model.cache import ModelCache
from labkit.model.config import LlamaConfig
from labkit.model.forward_batch import ForwardBatch
from labkit.model.layers import Rope, paged_attention
from labkit.model.weights import WeightSource
from labkit.ops.paged_kv import KVPages
from labkit.ops.qk_norm_rope_kv import qk_norm_rope_kv


class LlamaAttention:
    """Grouped-query attention with RoPE on the whole head."""

    def __init__(self, source: WeightSource, name: str, config: LlamaConfig) -> None:
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        width, q_rows, kv_rows = config.hidden_size, self.heads * self.dim, self.kv_heads * self.dim
        self.qkv = source.projection(
            width, {f"{name}.q_proj": q_rows, f"{name}.k_proj": kv_rows, f"{name}.v_proj": kv_rows}
        )
        self.out = source.projection(q_rows, {f"{name}.o_proj": width})

    def __call__(self, x: Tensor, rope: tuple[Tensor, Tensor], pages: KVPages, batch: ForwardBatch) -> Tensor:
        qkv = self.qkv(x).view(x.shape[0], -1, self.dim)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q = qk_norm_rope_kv(q, k, v, *rope, batch.kv_slots, pages)
        return self.out(paged_attention(q, pages, batch).flatten(1))


class LlamaLayer:
    """One decoder layer."""

    def __init__(self, source: WeightSource, name: str, config: LlamaConfig) -> None:
        self.input_norm = source.norm(f"{name}.input_layernorm", config.hidden_size)
        self.attention = LlamaAttention(source, f"{name}.self_attn", config)
        self.post_norm = source.norm(f"{name}.post_attention_layernorm", config.hidden_size)
        self.mlp = source.swiglu(f"{name}.mlp")

    def __call__(self, x: Tensor, rope: tuple[Tensor, Tensor], pages: KVPages, batch: ForwardBatch) -> Tensor:
        attended = self.attention(self.input_norm(x), rope, pages, batch)
        normed = self.post_norm.add(x, attended)  # x += attended
        return self.mlp(normed, x)


class Llama:
    """Token ids -> hidden states after the final norm; ``head`` turns rows of them into logits."""

    def __init__(self, source: WeightSource, config: LlamaConfig) -> None:
        self.config = config
        self.embed = source.embedding()
        self.rope = Rope(config.rope, source.device)
        self.layers = [LlamaLayer(source, f"model.layers.{i}", config) for i in range(config.num_hidden_layers)]
        self.norm = source.norm("model.norm", config.hidden_size)
        self.head = source.head()
        self.linears = source.linears

    def __call__(self, batch: ForwardBatch, cache: ModelCache) -> Tensor:
        """Hidden states [T, hidden] in the model dtype; the caches are updated in place."""
        x = self.embed(batch.token_ids)
        rope = self.rope(batch.positions)
        for layer, pages in zip(self.layers, cache, strict=True):
            assert isinstance(pages, KVPages)
            x = layer(x, rope, pages, batch)
        return self.norm(x)

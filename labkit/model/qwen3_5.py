"""Dense Qwen3.5 (also 3.6 and 3.8, which share its geometry): Gated DeltaNet and gated attention, 3 to 1.

A layer: x += mixer(norm(x)); x += mlp(norm(x)). The norms are zero-centred in the file (1 + w), except the
output norm of Gated DeltaNet, which uses its weight as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.model.cache import GdnState, ModelCache
from labkit.model.config import FULL_ATTENTION, Qwen35Config
from labkit.model.forward_batch import ForwardBatch
from labkit.model.layers import Rope, paged_attention
from labkit.model.weights import WeightSource
from labkit.ops.gated_rmsnorm import gated_rmsnorm
from labkit.ops.gdn_conv import gdn_conv
from labkit.ops.gdn_decode import gdn_decode
from labkit.ops.gdn_prefill import gdn_prefill
from labkit.ops.paged_kv import KVPages
from labkit.ops.qk_norm_rope_kv import qk_norm_rope_kv
from labkit.ops.state_batch import StateBatch


class GatedAttention:
    """Full attention with per-head q/k norms, RoPE on the first dimensions of a head, and a sigmoid output gate.

    q_proj's rows come per head as [query | gate], not as two halves of the whole.
    """

    def __init__(self, source: WeightSource, name: str, config: Qwen35Config) -> None:
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        width, q_rows, kv_rows = config.hidden_size, self.heads * self.dim, self.kv_heads * self.dim
        self.qkv = source.projection(
            width, {f"{name}.q_proj": 2 * q_rows, f"{name}.k_proj": kv_rows, f"{name}.v_proj": kv_rows}
        )
        self.q_norm = source.norm(f"{name}.q_norm", self.dim, zero_centered=True)
        self.k_norm = source.norm(f"{name}.k_norm", self.dim, zero_centered=True)
        self.out = source.projection(q_rows, {f"{name}.o_proj": width})

    def __call__(self, x: Tensor, rope: tuple[Tensor, Tensor], pages: KVPages, batch: ForwardBatch) -> Tensor:
        tokens = x.shape[0]
        heads = self.qkv(x).view(tokens, -1, self.dim)
        q_gate, k, v = heads.split((2 * self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, gate = q_gate.reshape(tokens, self.heads, 2, self.dim).unbind(2)
        q_norm, k_norm, eps = self.q_norm.weight, self.k_norm.weight, self.q_norm.eps
        q = qk_norm_rope_kv(q, k, v, *rope, batch.kv_slots, pages, q_norm=q_norm, k_norm=k_norm, eps=eps)
        return self.out(paged_attention(q, pages, batch, gate).flatten(1))


class GatedDeltaNet:
    """Linear attention with a fixed-size state: projections, causal convolution, gated delta rule, gated norm."""

    def __init__(self, source: WeightSource, name: str, config: Qwen35Config) -> None:
        self.config = config
        width, heads = config.hidden_size, config.linear_num_value_heads
        self.qkvz = source.projection(
            width, {f"{name}.in_proj_qkv": config.conv_dim, f"{name}.in_proj_z": config.value_dim}
        )
        self.ba = source.projection(width, {f"{name}.in_proj_b": heads, f"{name}.in_proj_a": heads})
        conv = source.vector(f"{name}.conv1d.weight", config.conv_dim, 1, config.linear_conv_kernel_dim)
        self.conv_weight = conv.flatten(1)
        self.a_log, self.dt_bias = source.vector(f"{name}.A_log", heads), source.vector(f"{name}.dt_bias", heads)
        self.norm_weight = source.vector(f"{name}.norm.weight", config.linear_value_head_dim)
        self.eps = config.rms_norm_eps
        self.out = source.projection(config.value_dim, {f"{name}.out_proj": width})

    def __call__(self, x: Tensor, state: GdnState, batch: ForwardBatch) -> Tensor:
        config, decodes = self.config, batch.num_decodes
        u, z = self.qkvz(x).split((config.conv_dim, config.value_dim), dim=1)
        b, a = self.ba(x).chunk(2, dim=1)
        key_heads, key_dim = config.linear_num_key_heads, config.linear_key_head_dim
        qkv = gdn_conv(u, self.conv_weight, state.conv, batch.states, key_heads, key_dim)
        outputs = []
        if decodes:
            ours = batch.decoding_states
            outputs.append(self._decode(qkv[:decodes], z[:decodes], b[:decodes], a[:decodes], state.ssm, ours))
        if decodes < len(batch.chunks):
            ours = batch.prefilling_states
            outputs.append(self._prefill(qkv[decodes:], z[decodes:], b[decodes:], a[decodes:], state.ssm, ours))
        return self.out(torch.cat(outputs) if len(outputs) > 1 else outputs[0])

    def _decode(self, qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, state: Tensor, batch: StateBatch) -> Tensor:
        weights = self.a_log, self.dt_bias, self.norm_weight
        return gdn_decode(qkv, z, b, a, *weights, self.eps, state, batch, self.config.linear_num_key_heads)

    def _prefill(self, qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, state: Tensor, batch: StateBatch) -> Tensor:
        out = gdn_prefill(qkv, b, a, self.a_log, self.dt_bias, state, batch, self.config.linear_num_key_heads)
        return gated_rmsnorm(out, z, self.norm_weight, self.eps)


class Qwen35Layer:
    """One decoder layer; its mixer is gated attention or Gated DeltaNet."""

    def __init__(self, source: WeightSource, name: str, config: Qwen35Config, kind: str) -> None:
        self.input_norm = source.norm(f"{name}.input_layernorm", config.hidden_size, zero_centered=True)
        self.attention = GatedAttention(source, f"{name}.self_attn", config) if kind == FULL_ATTENTION else None
        self.gdn = None if self.attention else GatedDeltaNet(source, f"{name}.linear_attn", config)
        self.post_norm = source.norm(f"{name}.post_attention_layernorm", config.hidden_size, zero_centered=True)
        self.mlp = source.swiglu(f"{name}.mlp")

    def __call__(
        self, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVPages | GdnState, batch: ForwardBatch
    ) -> Tensor:
        mixed = self._mix(self.input_norm(x), rope, cache, batch)
        normed = self.post_norm.add(x, mixed)  # x += mixed
        return self.mlp(normed, x)

    def _mix(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVPages | GdnState, batch: ForwardBatch) -> Tensor:
        if self.attention is not None:
            assert isinstance(cache, KVPages)
            return self.attention(x, rope, cache, batch)
        assert self.gdn is not None and isinstance(cache, GdnState)
        return self.gdn(x, cache, batch)


class Qwen35:
    """Token ids -> hidden states after the final norm; ``head`` turns rows of them into logits."""

    def __init__(self, source: WeightSource, config: Qwen35Config) -> None:
        self.config = config
        self.embed = source.embedding()
        self.rope = Rope(config.rope, source.device)
        self.layers = [
            Qwen35Layer(source, f"model.layers.{i}", config, kind) for i, kind in enumerate(config.layer_types)
        ]
        self.norm = source.norm("model.norm", config.hidden_size, zero_centered=True)
        self.head = source.head()
        self.linears = source.linears

    def __call__(self, batch: ForwardBatch, cache: ModelCache) -> Tensor:
        """Hidden states [T, hidden] in the model dtype; caches and states are updated in place."""
        x = self.embed(batch.token_ids)
        rope = self.rope(batch.positions)
        for layer, entry in zip(self.layers, cache, strict=True):
            x = layer(x, rope, entry, batch)
        return self.norm(x)

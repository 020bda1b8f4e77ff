"""GGUF's names and keys for the Llama architecture, and their counterparts in Hugging Face's checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from labkit.errors import CheckpointError, UnsupportedModelError

TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = ("llama.rope.scaling.factor", "llama.rope.scale_linear")  # the second is the older name
HEAD_WIDTHS = ("llama.attention.key_length", "llama.attention.value_length")
BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

CURE = "Use a plain Llama-architecture file, or the model's safetensors checkpoint."


def hf_name(name: str) -> str | None:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``; None for a tensor that Llama lacks."""
    match = BLOCK.fullmatch(name)
    if match is None or match[2] not in IN_BLOCK:
        return TOP_LEVEL.get(name)
    return f"model.layers.{match[1]}.{IN_BLOCK[match[2]]}.{match[3]}"


def check_supported(metadata: Mapping[str, Any], tensor_names: frozenset[str]) -> None:
    """Raises UnsupportedModelError for what would load but run wrongly."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModelError(f"GGUF of architecture {architecture} is not supported.", cure=CURE)
    widths = {str(metadata[key]) for key in HEAD_WIDTHS if key in metadata}
    reasons = {
        "split over several files": metadata.get("split.count", 1) not in (0, 1),
        "with a mixture of experts": metadata.get("llama.expert_count", 0) != 0,
        "with scaled rotary embeddings": "rope_freqs.weight" in tensor_names or _has_scaling(metadata),
        "whose keys and values differ in width": len(widths) > 1,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(f"A Llama GGUF {reason} is not supported.", cure=CURE)


def _has_scaling(metadata: Mapping[str, Any]) -> bool:
    """Whether RoPE is rescaled. A factor without a type means linear scaling; 0 and 1 mean none."""
    kind = metadata.get("llama.rope.scaling.type")
    if kind is not None:
        return bool(kind != "none")
    return any(metadata.get(name, 0) not in (0, 1) for name in ROPE_FACTORS)


def hf_config(metadata: Mapping[str, Any], tensor_names: frozenset[str], vocab_size: int) -> dict[str, Any]:
    """The keys of Hugging Face's ``LlamaConfig``. Raises CheckpointError naming a key that is missing or no number."""

    def key(name: str, default: float | None = None) -> Any:
        value = metadata.get(f"llama.{name}", default)
        if not isinstance(value, int | float) or value <= 0:
            raise CheckpointError(f"The GGUF key llama.{name} is {value}, not one number above 0.", cure=CURE)
        return value

    heads = key("attention.head_count")
    head_dim = key("attention.key_length", key("embedding_length") // heads)
    if metadata.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError("A Llama GGUF with partial rotary embeddings is not supported.", cure=CURE)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": key("embedding_length"),
        "intermediate_size": key("feed_forward_length"),
        "num_hidden_layers": key("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": key("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensor_names,
        "mlp_bias": "blk.0.ffn_up.bias" in tensor_names,
        "max_position_embeddings": key("context_length"),
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
        "rope_theta": key("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }


def rotary_rows(name: str, rows: int, config: Mapping[str, Any]) -> Tensor | None:
    """Row i of Hugging Face's q or k projection is row ``result[i]`` of GGUF's; None for all other tensors.

    llama.cpp rotates neighbours (2j, 2j + 1) of a head, Hugging Face the pair (j, j + head_dim / 2); the
    converter therefore reorders the rows of every head, and this undoes it.
    Raises CheckpointError if the heads do not add up to the tensor's rows.
    """
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    part = name.split(".")[-2]
    if part not in heads:
        return None
    count, width = int(config[heads[part]]), int(config["head_dim"])
    if count * width != rows:
        raise CheckpointError(f"{name} has {rows} rows where the heads need {count * width}.", cure=CURE)
    return torch.arange(rows).view(count, width // 2, 2).transpose(1, 2).reshape(-1)

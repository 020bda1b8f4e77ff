"""A random transformers Llama, small enough to be written as GGUF in every test."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def draw_model(*, tied: bool = False, bias: bool = False) -> LlamaForCausalLM:
    """Two layers, grouped-query attention, weights of size 0.3."""
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=777, rms_norm_eps=1e-5, bos_token_id=1,
        eos_token_id=2, tie_word_embeddings=tied, attention_bias=bias,
        rope_parameters={"rope_theta": 5e4, "rope_type": "default"},
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model

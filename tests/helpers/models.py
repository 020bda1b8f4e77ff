"""Small random models as Hugging Face transformers builds them: the oracle of the parity tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3_5ForCausalLM, Qwen3_5TextConfig

SIGMA = 0.15  # of matrices: far enough from zero that logits differ clearly
NORM_NOISE = 0.1  # of norm weights: at their initial value a zero-centred norm looks like a plain one


def llama(**changes: Any) -> LlamaForCausalLM:
    """A random Llama: 2 layers, width 64, 4 query and 2 key heads of 16, vocabulary 160, unless changed."""
    settings = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "eos_token_id": None,
        "bos_token_id": None,
        **changes,
    }
    return randomized(LlamaForCausalLM(LlamaConfig(**settings)))


def qwen35(**changes: Any) -> Qwen3_5ForCausalLM:
    """A random dense Qwen3.5: 3 Gated DeltaNet layers and 1 of attention, small heads, unless changed."""
    settings = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
        **changes,
    }
    return randomized(Qwen3_5ForCausalLM(Qwen3_5TextConfig(**settings)))


def randomized(model: PreTrainedModel) -> Any:
    """Redraw every weight from the current seed, in fp32."""
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.normal_(0, SIGMA)
        elif name.endswith("dt_bias"):
            weight.normal_(0, 1)
        elif "norm" in name:
            weight.add_(torch.randn_like(weight) * NORM_NOISE)
    return model.float().eval()


def saved(model: PreTrainedModel, directory: Path) -> Path:
    """Write the model as a checkpoint directory."""
    model.save_pretrained(directory)
    return directory


def oracle_logits(model: Any, ids: list[int]) -> Tensor:
    """transformers' logits for one prompt: fp32 [tokens, V]."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def random_ids(vocabulary: int, count: int) -> list[int]:
    """Random token ids from the current seed."""
    return torch.randint(0, vocabulary, (count,)).tolist()


def assert_same_logits(ours: Tensor, theirs: Tensor, tolerance: float = 2e-3) -> None:
    """Close everywhere and the same best token, except where the best two are closer than twice the tolerance."""
    worst = (ours - theirs).abs().max().item()
    assert worst <= tolerance, f"largest difference {worst:.2e}"
    best = theirs.topk(2, dim=-1).values
    differ = ours.argmax(-1) != theirs.argmax(-1)
    tied = best[:, 0] - best[:, 1] < 2 * tolerance
    print(f"largest difference {worst:.2e}, ties {int(tied.sum())}, of which {int((differ & tied).sum())} differ")
    assert not (differ & ~tied).any()

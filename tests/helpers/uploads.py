"""Small Qwen3.5 checkpoints with the formats and the lists of names of real uploads.

Which modules are 4-bit, how the config says it, what lies beside the weights: as the headers and configs of the uploads
named here have it. Names begin with ``model.language_model.``; a multi-token prediction block and vision tensors are
there too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from helpers.compressed_files import group_config, packed_config, packed_module
from helpers.gptq_files import AS_IS, auto_round_config, gptq_config, gptq_module, quantize_symmetric
from helpers.models import qwen35
from helpers.packers import (
    State,
    awq_config,
    awq_triplet,
    dequantize_rows,
    own_state,
    quantize_rows,
    write_safetensors,
)
from torch import Tensor, nn

MLP = r"mlp\.(gate|up|down)_proj"
GDN = r"linear_attn\.(in_proj_qkv|in_proj_z|out_proj)"
GATES = r"linear_attn\.in_proj_[ab]"
ATTENTION = r"self_attn\.[qkvo]_proj"
ALL = rf"model\.layers\.\d+\.({MLP}|{GDN}|{ATTENTION})"
TEXT = "model.language_model."

Packed = tuple[State, Tensor]  # a module's tensors, and what its weights then are


def awq(weight: Tensor, group: int) -> Packed:
    parts = quantize_rows(weight, group)
    return awq_triplet(*parts), dequantize_rows(*parts)


def gptq_symmetric(weight: Tensor, group: int) -> Packed:
    parts = quantize_symmetric(weight, group)
    return gptq_module(*parts), dequantize_rows(*parts)


def auto_round_symmetric(weight: Tensor, group: int) -> Packed:
    parts = quantize_symmetric(weight, group)
    return gptq_module(*parts, order=False), dequantize_rows(*parts)


def auto_round_asymmetric(weight: Tensor, group: int) -> Packed:
    parts = quantize_rows(weight, group)
    return gptq_module(*parts, AS_IS, order=False), dequantize_rows(*parts)


def compressed(weight: Tensor, group: int, symmetric: bool, dtype: torch.dtype) -> Packed:
    return packed_module(weight, group, symmetric=symmetric, scale_dtype=dtype)


@dataclass(frozen=True)
class Upload:
    """What a publisher does. quantizes: pattern over canonical module names. extra: further tensors in the file."""

    group: int
    quantizes: str
    pack: Callable[[Tensor, int], Packed]
    config: Mapping[str, Any]
    extra: Mapping[str, Tensor] = field(default_factory=dict)


def _ignored(*parts: str) -> list[str]:
    """An ``ignore`` list as llm-compressor writes it: every name spelled out."""
    names = [f"{TEXT}layers.{layer}.linear_attn.{part}" for layer in range(3) for part in parts]
    return [*names, "model.visual.blocks.0.attn.qkv", "lm_head"]


FP8_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
GATE_RULES = {f"{TEXT}layers.{layer}.linear_attn.in_proj_{gate}": {"bits": 16} for layer in range(3) for gate in "ab"}
LEFT_OUT = ["-:.*attn.*", "-:.*shared_expert.*", "-:.*mtp.*", "-:.*visual.*"]

UPLOADS: Mapping[str, Upload] = {
    "QuantTrio 3.6 AWQ": Upload(
        128,
        rf"model\.layers\.[1-9]\d*\.({MLP}|{GDN}|self_attn\.o_proj)",
        awq,
        awq_config(128, modules_to_not_convert=["visual", "mtp", "layers.0.", "q_proj", "k_proj", "v_proj"]),
    ),
    "cyankiwi 3.6 AWQ-INT4": Upload(
        32,
        ALL,
        lambda weight, group: compressed(weight, group, False, torch.float16),
        packed_config(group_config(32, False), ignore=_ignored("in_proj_a", "in_proj_b")),
    ),
    "cyankiwi 3.5 AWQ-4bit": Upload(
        32,
        ALL,
        lambda weight, group: compressed(weight, group, True, torch.bfloat16),
        packed_config(group_config(32, True), ignore=["re:.*in_proj_[ab]", "re:.*visual.*", "re:^mtp.*", "lm_head"]),
    ),
    "RedHatAI 3.8 INT4": Upload(
        128,
        ALL,
        lambda weight, group: compressed(weight, group, True, torch.bfloat16),
        packed_config(group_config(128, True, actorder="static"), kv_cache_scheme=FP8_CACHE),
        {f"model.layers.3.self_attn.{key}_scale": torch.ones(1, dtype=torch.bfloat16) for key in "kv"},
    ),
    "Qwen 3.5 GPTQ-Int4": Upload(
        128,
        rf"model\.layers\.\d+\.{MLP}",
        gptq_symmetric,
        gptq_config(
            128,
            sym=True,
            checkpoint_format="gptq",
            dynamic={"lm_head": {}, f"{TEXT}embed_tokens": {}} | {rule: {} for rule in LEFT_OUT},
            meta={"quantizer": ["gptqmodel:5.4.0"]},
        ),
    ),
    "Lorbus 3.6 AutoRound": Upload(128, ALL, auto_round_symmetric, auto_round_config(128, extra_config=GATE_RULES)),
    "Intel 3.6 AutoRound, gates too": Upload(
        128, rf"{ALL}|model\.layers\.\d+\.{GATES}", auto_round_symmetric, auto_round_config(128)
    ),
    "AutoRound, asymmetric": Upload(
        128, ALL, auto_round_asymmetric, auto_round_config(128, sym=False, packing_format="auto_round")
    ),
}


def small_qwen(**changes: Any) -> Any:
    """A Qwen3.5 whose matrices all divide into groups of 128, with eight outputs in in_proj_a and in_proj_b."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "linear_num_value_heads": 8, "linear_value_head_dim": 16}
    return qwen35(**{**sizes, **changes})


def write_upload(directory: Path, model: nn.Module, upload: Upload) -> State:
    """Write ``model`` as ``upload`` would; returns its state dict with the dequantized weights."""
    stored, exact = own_state(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in [name for name in stored if re.fullmatch(upload.quantizes, name.removesuffix(".weight"))]:
        fields, exact[name] = upload.pack(stored.pop(name), upload.group)
        stored |= {f"{name.removesuffix('weight')}{key}": tensor for key, tensor in fields.items()}
    stored |= upload.extra | _beside_the_text_model(model.config.hidden_size)
    text = {**model.config.to_dict(), "mtp_num_hidden_layers": 1}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": {"depth": 1, "hidden_size": 16},
        "tie_word_embeddings": False,
        "quantization_config": dict(upload.config),
    }
    write_safetensors(directory, stored, config, shards=3, prefix=TEXT)
    return exact


def _beside_the_text_model(width: int) -> State:
    """Tensors that the loader leaves alone: the multi-token prediction block, here in part, and the vision tower."""
    return {
        "mtp.fc.weight": torch.randn(width, 2 * width).bfloat16(),
        "mtp.layers.0.self_attn.q_norm.weight": torch.zeros(32).bfloat16(),
        "model.visual.patch_embed.proj.weight": torch.randn(16, 12).bfloat16(),
        "model.visual.blocks.0.attn.qkv.weight": torch.randn(48, 16).bfloat16(),
    }

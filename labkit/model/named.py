"""Models known by name: the public geometries of Qwen3.5 / 3.6 / 3.8, and the ways people quantize them.

``labkit fit Qwen3.5-27B --weights quanttrio`` needs no file: the geometry comes from ``NAMED_CONFIGS`` and the bits of
every matrix from ``RECIPES``. The sizes are those of the published ``config.json`` files; summed up
(``labkit.bench.fit_modules``) they give the published parameter counts. Qwen3.6 and Qwen3.8-27B have the geometry
of their Qwen3.5 namesake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_COMMON: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "attn_output_gate": True,
    "attention_bias": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262_144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    "mtp_num_hidden_layers": 1,
    "eos_token_id": 248_044,
    "dtype": "bfloat16",
}


@dataclass(frozen=True)
class VisionTower:
    """Sizes of the image encoder, which labkit never loads; they only serve to check published totals."""

    depth: int
    hidden: int
    intermediate: int
    out: int


def _dense(
    hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, value_heads: int, tied: bool
) -> dict[str, Any]:
    return {
        **_COMMON,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "linear_num_value_heads": value_heads,
        "tie_word_embeddings": tied,
    }


_35B_A3B: dict[str, Any] = {
    **_COMMON,
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 32,
    "tie_word_embeddings": False,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_27B = _dense(5120, 64, 24, 4, 17_408, 48, tied=False)

NAMED_CONFIGS: Mapping[str, dict[str, Any]] = {
    "Qwen3.5-0.8B": _dense(1024, 24, 8, 2, 3584, 16, tied=True),
    "Qwen3.5-2B": _dense(2048, 24, 8, 2, 6144, 16, tied=True),
    "Qwen3.5-4B": _dense(2560, 32, 16, 4, 9216, 32, tied=True),
    "Qwen3.5-9B": _dense(4096, 32, 16, 4, 12_288, 32, tied=False),
    "Qwen3.5-27B": _27B,
    "Qwen3.6-27B": _27B,
    "Qwen3.8-27B": _27B,
    "Qwen3.5-35B-A3B": _35B_A3B,
    "Qwen3.6-35B-A3B": _35B_A3B,
}

VISION_TOWERS: Mapping[str, VisionTower] = {
    "Qwen3.5-0.8B": VisionTower(12, 768, 3072, 1024),
    "Qwen3.5-2B": VisionTower(24, 1024, 4096, 2048),
    "Qwen3.5-4B": VisionTower(24, 1024, 4096, 2560),
    "Qwen3.5-9B": VisionTower(27, 1152, 4304, 4096),
    "Qwen3.5-27B": VisionTower(27, 1152, 4304, 5120),
    "Qwen3.5-35B-A3B": VisionTower(27, 1152, 4304, 2048),
}


@dataclass(frozen=True)
class Recipe:
    """Which matrices are 4-bit, and what a group of weights costs besides its nibbles.

    ``dense`` and ``moe`` are patterns over canonical module names (``model.layers.3.mlp.up_proj``); ``first_layer``
    is the first layer that is quantized at all. ``meta_bits`` are the bits of scale and zero point per group.
    """

    name: str
    group_size: int
    meta_bits: int
    dense: str
    moe: str
    first_layer: int
    about: str

    @property
    def bits_per_weight(self) -> float:
        """Bits that one quantized weight takes in the file."""
        return 4 + self.meta_bits / self.group_size

    def quantizes(self, module: str, *, moe: bool) -> bool:
        """Whether the named module is stored in 4 bits (the MTP head, embedding and output head never are)."""
        layer = re.match(r"model\.layers\.(\d+)\.(.+)", module)
        if layer is None or int(layer[1]) < self.first_layer:
            return False
        return re.fullmatch(self.moe if moe else self.dense, layer[2]) is not None


_MLP = r"mlp\.(gate|up|down)_proj"
_GDN = r"linear_attn\.(in_proj_qkv|in_proj_z|out_proj)"
_ALL_LINEARS = rf"{_MLP}|{_GDN}|self_attn\.[qkvo]_proj"
_EXPERTS = r"mlp\.experts\.(gate|up|down)_proj"
_SCALE, _SCALE_AND_ZERO = 16, 20

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("g128-sym", 128, _SCALE, _ALL_LINEARS, _EXPERTS, 0, "compressed-tensors or AutoRound, symmetric"),
        Recipe("g128-awq", 128, _SCALE_AND_ZERO, _ALL_LINEARS, _EXPERTS, 0, "AutoAWQ gemm, zero points"),
        Recipe("g32-sym", 32, _SCALE, _ALL_LINEARS, _EXPERTS, 0, "compressed-tensors, as cyankiwi's 3.5 uploads"),
        Recipe("g32-asym", 32, _SCALE_AND_ZERO, _ALL_LINEARS, _EXPERTS, 0, "as cyankiwi's 3.6 uploads"),
        Recipe(
            "quanttrio",
            128,
            _SCALE_AND_ZERO,
            rf"{_MLP}|{_GDN}|self_attn\.o_proj",
            _EXPERTS,
            1,
            "AutoAWQ as QuantTrio's uploads: layer 0 and q/k/v stay 16-bit",
        ),
        Recipe("gptq-mlp", 128, _SCALE_AND_ZERO, _MLP, _EXPERTS, 0, "GPTQ as Qwen's own uploads: MLP or experts only"),
    )
}
UNQUANTIZED = ("fp16", "bf16")
WEIGHTS = (*UNQUANTIZED, *RECIPES)

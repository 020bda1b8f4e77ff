"""Model configurations: what ``config.json`` says, checked once and given plain names.

Two architectures: Llama (also SmolLM2 and every model of that shape) and dense Qwen3.5
(Gated DeltaNet layers with a gated full-attention layer in every fourth place).
Field names are those of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import UnsupportedModelError
from labkit.model.config_fields import broken_field, float_of, object_of, require, size_of, token_ids_of

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"
MOST_LAYERS = 10_000  # far above any model; a wild number must not fill the memory


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base, how many of a head's dimensions rotate, and Llama 3's rescaling."""

    theta: float
    rotary_dim: int
    scaling: Llama3Scaling | LinearScaling | None = None


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every frequency divided by ``factor`` (Chen et al. 2023, arXiv:2306.15595)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's rescaling: low frequencies divided by ``factor``, high ones kept, a ramp in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """What both architectures have."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    rope: RopeConfig
    layer_types: tuple[str, ...]

    @property
    def num_attention_layers(self) -> int:
        """Layers that keep KV pages."""
        return self.layer_types.count(FULL_ATTENTION)

    @property
    def num_linear_layers(self) -> int:
        """Layers that keep a recurrent state."""
        return self.layer_types.count(LINEAR_ATTENTION)


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """Llama: pre-norm, rotate-half RoPE on the whole head, grouped queries, SwiGLU, no biases."""


@dataclass(frozen=True)
class Qwen35Config(ModelConfig):
    """Dense Qwen3.5 / 3.6 / 3.8: Gated DeltaNet and gated full attention, 3 to 1."""

    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 4
    num_mtp_layers: int = 0

    @property
    def key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution: q, k and v side by side."""
        return 2 * self.key_dim + self.value_dim


def parse_config(config: Mapping[str, Any]) -> LlamaConfig | Qwen35Config:
    """Read a Hugging Face ``config.json`` dictionary.

    Composite (vision-language) configs are read through their ``text_config``, whose values win over the outer
    ones. Raises UnsupportedModelError for other architectures or settings and CheckpointError for broken fields.
    """
    text = text_config(config)
    model_type = str(text.get("model_type", config.get("model_type", "")))
    if model_type == "llama":
        return _llama(text)
    if model_type in ("qwen3_5", "qwen3_5_text"):
        return _qwen35(text)
    named = model_type or "unnamed (config.json has no model_type)"
    raise UnsupportedModelError(
        f"The architecture {named} is not supported.", cure="labkit runs llama and dense qwen3_5 checkpoints."
    )


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of a config: the outer values overlaid with ``text_config``."""
    nested = config.get("text_config")
    if not isinstance(nested, Mapping):
        return dict(config)
    outer = {key: value for key, value in config.items() if key not in ("text_config", "vision_config")}
    return {**outer, **nested}


def _llama(text: Mapping[str, Any]) -> LlamaConfig:
    require(text, "hidden_act", ("silu", "swish"))
    for bias in ("attention_bias", "mlp_bias"):
        require(text, bias, (False,))
    common = _common(text, partial=1.0)
    _refuse_window(text, common["max_position_embeddings"])
    layers = (FULL_ATTENTION,) * common["num_hidden_layers"]
    return LlamaConfig(architecture="llama", layer_types=layers, **common)


def _qwen35(text: Mapping[str, Any]) -> Qwen35Config:
    require(text, "hidden_act", ("silu", "swish"))
    require(text, "attention_bias", (False,))
    require(text, "attn_output_gate", (True,))
    require(text, "output_gate_type", ("silu", "swish"))
    common = _common(text, partial=0.25)
    config = Qwen35Config(
        architecture="qwen3_5",
        layer_types=_layer_types(text, common["num_hidden_layers"]),
        **common,
        **_linear_sizes(text),
        linear_conv_kernel_dim=size_of(text, "linear_conv_kernel_dim", 4),
        num_mtp_layers=size_of(text, "mtp_num_hidden_layers", 0, least=0),
    )
    if config.linear_num_value_heads % config.linear_num_key_heads:
        raise broken_field(
            "linear_num_value_heads", config.linear_num_value_heads, "a multiple of linear_num_key_heads"
        )
    return config


def _refuse_window(text: Mapping[str, Any], longest: int) -> None:
    """A window of attention changes nothing only if every sequence fits it."""
    window = size_of(text, "sliding_window", longest)
    if window < longest:
        raise UnsupportedModelError(
            f"config.json has sliding_window = {window}.", cure="labkit runs llama checkpoints with full attention."
        )


def _linear_sizes(text: Mapping[str, Any]) -> dict[str, Any]:
    names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    return {name: size_of(text, name) for name in names}


def _common(text: Mapping[str, Any], partial: float) -> dict[str, Any]:
    heads = size_of(text, "num_attention_heads")
    kv_heads = size_of(text, "num_key_value_heads", heads)
    head_dim = size_of(text, "head_dim", size_of(text, "hidden_size") // heads)
    if heads % kv_heads:
        raise broken_field("num_attention_heads", heads, f"a multiple of num_key_value_heads ({kv_heads})")
    return {
        "vocab_size": size_of(text, "vocab_size"),
        "hidden_size": size_of(text, "hidden_size"),
        "intermediate_size": size_of(text, "intermediate_size"),
        "num_hidden_layers": size_of(text, "num_hidden_layers", most=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": float_of({"rms_norm_eps": 1e-6, **text}, "rms_norm_eps"),
        "max_position_embeddings": size_of(text, "max_position_embeddings", 2048),
        "tie_word_embeddings": bool(text.get("tie_word_embeddings", False)),
        "eos_token_ids": token_ids_of(text, "eos_token_id"),
        "rope": _rope(text, head_dim, partial),
    }


def _layer_types(text: Mapping[str, Any], count: int) -> tuple[str, ...]:
    interval = size_of(text, "full_attention_interval", 4)
    computed = [FULL_ATTENTION if (i + 1) % interval == 0 else LINEAR_ATTENTION for i in range(count)]
    given = text.get("layer_types")
    given = computed if given is None else given
    known = isinstance(given, list | tuple) and all(kind in (FULL_ATTENTION, LINEAR_ATTENTION) for kind in given)
    if not known or len(given) != count:
        raise broken_field("layer_types", given, f"{count} entries of {FULL_ATTENTION} or {LINEAR_ATTENTION}")
    return tuple(given)


def _rope(text: Mapping[str, Any], head_dim: int, partial: float) -> RopeConfig:
    """RoPE settings, whether nested (``rope_parameters``), split (``rope_scaling``) or flattened into the config."""
    nested = {**object_of(text, "rope_scaling"), **object_of(text, "rope_parameters")}
    values = {**text, **nested}
    share = float_of(values, "partial_rotary_factor", partial)
    rotary_dim = int(head_dim * min(share, 1.0))
    if share > 1 or rotary_dim == 0 or rotary_dim % 2:
        raise broken_field(
            "partial_rotary_factor", share, f"the share of an even number of the head's {head_dim} dimensions"
        )
    kind = str(nested.get("rope_type", nested.get("type", "default")))
    return RopeConfig(float_of(values, "rope_theta", 10_000.0), rotary_dim, _rope_scaling(kind, nested))


def _rope_scaling(kind: str, values: Mapping[str, Any]) -> Llama3Scaling | LinearScaling | None:
    if kind in ("default", "mrope"):  # text positions make mRoPE plain RoPE: all three axes are the token index
        return None
    if kind == "linear":
        return LinearScaling(float_of(values, "factor"))
    if kind == "llama3":
        return _llama3_scaling(values)
    raise UnsupportedModelError(
        f"RoPE scaling {kind!r} is not supported.", cure="labkit knows default, linear and llama3."
    )


def _llama3_scaling(values: Mapping[str, Any]) -> Llama3Scaling:
    factor, low, high = (float_of(values, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise broken_field("low_freq_factor", low, f"below high_freq_factor ({high})")
    return Llama3Scaling(factor, low, high, size_of(values, "original_max_position_embeddings"))

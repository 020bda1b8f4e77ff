"""Model configurations: what ``config.json`` says, checked once and given plain names.

Two architectures: Llama (also SmolLM2 and every model of that shape) and dense Qwen3.5
(Gated DeltaNet layers with a gated full-attention layer in every fourth place).
Field names are those of Hugging Face.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import CheckpointError, UnsupportedModelError

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
    _require(text, "hidden_act", ("silu", "swish"))
    for bias in ("attention_bias", "mlp_bias"):
        _require(text, bias, (False,))
    common = _common(text, partial=1.0)
    _refuse_window(text, common["max_position_embeddings"])
    layers = (FULL_ATTENTION,) * common["num_hidden_layers"]
    return LlamaConfig(architecture="llama", layer_types=layers, **common)


def _qwen35(text: Mapping[str, Any]) -> Qwen35Config:
    _require(text, "hidden_act", ("silu", "swish"))
    _require(text, "attention_bias", (False,))
    _require(text, "attn_output_gate", (True,))
    _require(text, "output_gate_type", ("silu", "swish"))
    common = _common(text, partial=0.25)
    config = Qwen35Config(
        architecture="qwen3_5",
        layer_types=_layer_types(text, common["num_hidden_layers"]),
        **common,
        **_linear_sizes(text),
        linear_conv_kernel_dim=_size(text, "linear_conv_kernel_dim", 4),
        num_mtp_layers=_size(text, "mtp_num_hidden_layers", 0, least=0),
    )
    if config.linear_num_value_heads % config.linear_num_key_heads:
        raise _broken("linear_num_value_heads", config.linear_num_value_heads, "a multiple of linear_num_key_heads")
    return config


def _refuse_window(text: Mapping[str, Any], longest: int) -> None:
    """A window of attention changes nothing only if every sequence fits it."""
    window = _size(text, "sliding_window", longest)
    if window < longest:
        raise UnsupportedModelError(
            f"config.json has sliding_window = {window}.", cure="labkit runs llama checkpoints with full attention."
        )


def _linear_sizes(text: Mapping[str, Any]) -> dict[str, Any]:
    names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    return {name: _size(text, name) for name in names}


def _common(text: Mapping[str, Any], partial: float) -> dict[str, Any]:
    heads = _size(text, "num_attention_heads")
    kv_heads = _size(text, "num_key_value_heads", heads)
    head_dim = _size(text, "head_dim", _size(text, "hidden_size") // heads)
    if heads % kv_heads:
        raise _broken("num_attention_heads", heads, f"a multiple of num_key_value_heads ({kv_heads})")
    return {
        "vocab_size": _size(text, "vocab_size"),
        "hidden_size": _size(text, "hidden_size"),
        "intermediate_size": _size(text, "intermediate_size"),
        "num_hidden_layers": _size(text, "num_hidden_layers", most=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": _float({"rms_norm_eps": 1e-6, **text}, "rms_norm_eps"),
        "max_position_embeddings": _size(text, "max_position_embeddings", 2048),
        "tie_word_embeddings": bool(text.get("tie_word_embeddings", False)),
        "eos_token_ids": _token_ids(text, "eos_token_id"),
        "rope": _rope(text, head_dim, partial),
    }


def _layer_types(text: Mapping[str, Any], count: int) -> tuple[str, ...]:
    interval = _size(text, "full_attention_interval", 4)
    computed = [FULL_ATTENTION if (i + 1) % interval == 0 else LINEAR_ATTENTION for i in range(count)]
    given = text.get("layer_types")
    given = computed if given is None else given
    known = isinstance(given, list | tuple) and all(kind in (FULL_ATTENTION, LINEAR_ATTENTION) for kind in given)
    if not known or len(given) != count:
        raise _broken("layer_types", given, f"{count} entries of {FULL_ATTENTION} or {LINEAR_ATTENTION}")
    return tuple(given)


def _rope(text: Mapping[str, Any], head_dim: int, partial: float) -> RopeConfig:
    """RoPE settings, whether nested (``rope_parameters``), split (``rope_scaling``) or flattened into the config."""
    nested = {**_object(text, "rope_scaling"), **_object(text, "rope_parameters")}
    values = {**text, **nested}
    share = _float(values, "partial_rotary_factor", partial)
    rotary_dim = int(head_dim * min(share, 1.0))
    if share > 1 or rotary_dim == 0 or rotary_dim % 2:
        raise _broken(
            "partial_rotary_factor", share, f"the share of an even number of the head's {head_dim} dimensions"
        )
    kind = str(nested.get("rope_type", nested.get("type", "default")))
    return RopeConfig(_float(values, "rope_theta", 10_000.0), rotary_dim, _rope_scaling(kind, nested))


def _rope_scaling(kind: str, values: Mapping[str, Any]) -> Llama3Scaling | LinearScaling | None:
    if kind in ("default", "mrope"):  # text positions make mRoPE plain RoPE: all three axes are the token index
        return None
    if kind == "linear":
        return LinearScaling(_float(values, "factor"))
    if kind == "llama3":
        return _llama3_scaling(values)
    raise UnsupportedModelError(
        f"RoPE scaling {kind!r} is not supported.", cure="labkit knows default, linear and llama3."
    )


def _llama3_scaling(values: Mapping[str, Any]) -> Llama3Scaling:
    factor, low, high = (_float(values, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise _broken("low_freq_factor", low, f"below high_freq_factor ({high})")
    return Llama3Scaling(factor, low, high, _size(values, "original_max_position_embeddings"))


def _size(
    text: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1
) -> int:
    value = text.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _broken(name, value, f"a whole number from {least} to {most}")
    return value


def _float(values: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = values.get(name)
    value = default if value is None else value
    # The upper bound also keeps out infinity, NaN and whole numbers that no float can hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise _broken(name, value, "a finite number above 0")
    return float(value)


def _object(text: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A nested object without its nulls, which mean the same as absent keys; {} if it is itself null or absent."""
    value = text.get(name)
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise _broken(name, value, "a JSON object")
    return {key: entry for key, entry in value.items() if entry is not None}


def _token_ids(text: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = text.get(name)
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise _broken(name, value, "a token id or a list of them")
    return tuple(ids)


def _require(text: Mapping[str, Any], name: str, allowed: tuple[Any, ...]) -> None:
    value = text.get(name)
    if value is not None and value not in allowed:
        raise UnsupportedModelError(
            f"config.json has {name} = {value!r}.", cure=f"labkit supports {name} in {list(allowed)} only."
        )


def _broken(name: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"config.json has {name} = {value!r}.", cure=f"It must be {expected}; download it again.")

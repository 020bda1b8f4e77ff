"""Every weight of a model as a list of modules: name, shape, and how tensor parallelism divides it.

One function per kind of block, in the order of the forward pass. Summed up, the list gives the parameter count; with
the bits of a recipe it gives bytes. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from labkit.errors import CheckpointError
from labkit.model.config import FULL_ATTENTION, LlamaConfig, Qwen35Config, parse_config, text_config
from labkit.model.named import VisionTower

ROWS, COLS, KV_ROWS, WHOLE = "rows", "cols", "kv rows", "whole"


@dataclass(frozen=True)
class Module:
    """One weight: ``shape`` is (outputs, inputs) for a matrix, with experts as a leading dimension.

    ``split`` says what a rank holds: its share of the outputs (``ROWS``) or inputs (``COLS``), whole KV heads
    (``KV_ROWS``: at least one, so more ranks than heads means copies), or all of it (``WHOLE``).
    """

    name: str
    shape: tuple[int, ...]
    split: str = WHOLE
    fp32: bool = False

    @property
    def parameters(self) -> int:
        return prod(self.shape)

    @property
    def is_mtp(self) -> bool:
        return self.name.startswith("mtp.")


@dataclass(frozen=True)
class Experts:
    """Sizes of a mixture-of-experts MLP: routed experts and one gated shared expert."""

    count: int
    intermediate: int
    shared_intermediate: int


@dataclass(frozen=True)
class Geometry:
    """A parsed config, with the experts that the dense config classes do not know."""

    config: LlamaConfig | Qwen35Config
    experts: Experts | None = None


def read_geometry(config: Mapping[str, Any]) -> Geometry:
    """Parse a Hugging Face config dictionary, mixture-of-experts ones included.

    Raises UnsupportedModelError and CheckpointError as ``parse_config`` does.
    """
    text = text_config(config)
    if text.get("model_type") not in ("qwen3_5_moe", "qwen3_5_moe_text"):
        return Geometry(parse_config(config))
    experts = Experts(
        _size(text, "num_experts"),
        _size(text, "moe_intermediate_size"),
        _size(text, "shared_expert_intermediate_size"),
    )
    # All but the MLP is as in the dense model, which therefore parses the rest.
    twin = {**text, "model_type": "qwen3_5_text", "intermediate_size": experts.intermediate}
    return Geometry(parse_config(twin), experts)


def list_modules(geometry: Geometry) -> list[Module]:
    """All weights of the text model, then those of its MTP block; the vision tower is never loaded."""
    config = geometry.config
    modules = [Module("model.embed_tokens", (config.vocab_size, config.hidden_size), ROWS)]
    for index in range(config.num_hidden_layers):
        modules += _layer(f"model.layers.{index}", geometry, config.layer_types[index])
    modules.append(Module("model.norm", (config.hidden_size,)))
    if not config.tie_word_embeddings:
        modules.append(Module("lm_head", (config.vocab_size, config.hidden_size), ROWS))
    return [*modules, *_mtp(geometry)]


def _layer(prefix: str, geometry: Geometry, layer_type: str) -> Iterator[Module]:
    config = geometry.config
    yield Module(f"{prefix}.input_layernorm", (config.hidden_size,))
    if layer_type == FULL_ATTENTION:
        yield from _attention(f"{prefix}.self_attn", config)
    else:
        assert isinstance(config, Qwen35Config)  # only its parser lets linear layers through
        yield from _delta_net(f"{prefix}.linear_attn", config)
    yield Module(f"{prefix}.post_attention_layernorm", (config.hidden_size,))
    if geometry.experts is None:
        yield from _mlp(f"{prefix}.mlp", config.hidden_size, config.intermediate_size)
    else:
        yield from _mixture(f"{prefix}.mlp", config.hidden_size, geometry.experts)


def _attention(prefix: str, config: LlamaConfig | Qwen35Config) -> Iterator[Module]:
    """Grouped-query attention; Qwen3.5's query projection carries an output gate beside every head, and norms."""
    hidden, dim = config.hidden_size, config.head_dim
    gated = isinstance(config, Qwen35Config)
    query_rows = config.num_attention_heads * dim * (2 if gated else 1)
    yield Module(f"{prefix}.q_proj", (query_rows, hidden), ROWS)
    yield Module(f"{prefix}.k_proj", (config.num_key_value_heads * dim, hidden), KV_ROWS)
    yield Module(f"{prefix}.v_proj", (config.num_key_value_heads * dim, hidden), KV_ROWS)
    yield Module(f"{prefix}.o_proj", (hidden, config.num_attention_heads * dim), COLS)
    if gated:
        yield Module(f"{prefix}.q_norm", (dim,))
        yield Module(f"{prefix}.k_norm", (dim,))


def _delta_net(prefix: str, config: Qwen35Config) -> Iterator[Module]:
    """Gated DeltaNet: q, k and v in one projection, the gate z, the per-head b and a, a short convolution."""
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    yield Module(f"{prefix}.in_proj_qkv", (config.conv_dim, hidden), ROWS)
    yield Module(f"{prefix}.in_proj_z", (config.value_dim, hidden), ROWS)
    yield Module(f"{prefix}.in_proj_b", (heads, hidden), ROWS)
    yield Module(f"{prefix}.in_proj_a", (heads, hidden), ROWS)
    yield Module(f"{prefix}.conv1d", (config.conv_dim, config.linear_conv_kernel_dim), ROWS)
    yield Module(f"{prefix}.A_log", (heads,), ROWS, fp32=True)
    yield Module(f"{prefix}.dt_bias", (heads,), ROWS)
    yield Module(f"{prefix}.norm", (config.linear_value_head_dim,), fp32=True)
    yield Module(f"{prefix}.out_proj", (hidden, config.value_dim), COLS)


def _mlp(prefix: str, hidden: int, intermediate: int, experts: tuple[int, ...] = ()) -> Iterator[Module]:
    yield Module(f"{prefix}.gate_proj", (*experts, intermediate, hidden), ROWS)
    yield Module(f"{prefix}.up_proj", (*experts, intermediate, hidden), ROWS)
    yield Module(f"{prefix}.down_proj", (*experts, hidden, intermediate), COLS)


def _mixture(prefix: str, hidden: int, experts: Experts) -> Iterator[Module]:
    """Router, routed experts (each divided over the ranks like a dense MLP), and the gated shared expert."""
    yield Module(f"{prefix}.gate", (experts.count, hidden))
    yield from _mlp(f"{prefix}.experts", hidden, experts.intermediate, (experts.count,))
    yield from _mlp(f"{prefix}.shared_expert", hidden, experts.shared_intermediate)
    yield Module(f"{prefix}.shared_expert_gate", (1, hidden))


def _mtp(geometry: Geometry) -> Iterator[Module]:
    """Multi-token prediction: two norms, a projection of [embedding; hidden], and full-attention layers."""
    config = geometry.config
    if not isinstance(config, Qwen35Config) or not config.num_mtp_layers:
        return
    hidden = config.hidden_size
    yield Module("mtp.fc", (hidden, 2 * hidden), ROWS)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield Module(f"mtp.{norm}", (hidden,))
    for index in range(config.num_mtp_layers):
        yield from _layer(f"mtp.layers.{index}", geometry, FULL_ATTENTION)


def vision_parameters(tower: VisionTower) -> int:
    """Parameters of the image encoder (a ViT over 2x16x16 patches with 2x2 merging): only to check totals."""
    hidden, merged = tower.hidden, 4 * tower.hidden
    attention = (3 * hidden * hidden + 3 * hidden) + (hidden * hidden + hidden)
    mlp = (tower.intermediate * hidden + tower.intermediate) + (hidden * tower.intermediate + hidden)
    block = 2 * 2 * hidden + attention + mlp
    patches = 3 * 2 * 16 * 16 * hidden + hidden
    positions = 48 * 48 * hidden
    merger = 2 * hidden + (merged * merged + merged) + (tower.out * merged + tower.out)
    return tower.depth * block + patches + positions + merger


def _size(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"config.json has {name} = {value!r}.", cure="It must be a whole number above 0.")
    return value

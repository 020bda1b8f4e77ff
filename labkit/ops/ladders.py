"""Every kernel ladder, and which specialisations of it a model needs: what ``labkit build`` compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.device.ladder import Ladder, Macros
from labkit.ops import paged_kv, rmsnorm, rope, silu_mul, softmax_online

if TYPE_CHECKING:
    from labkit.model.config import ModelConfig

HALF_PAGES = ("auto", "fp16", "float16")  # KV dtypes whose pages a kernel writes


def _rmsnorm(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    """Norms over the hidden state; Qwen3.5 has others over the heads of queries and keys."""
    rows = [config.hidden_size, *([config.head_dim] if config.architecture == "qwen3_5" else [])]
    return [rmsnorm.macros(size) for size in dict.fromkeys(rows)]


def _silu_mul(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    return [silu_mul.macros(config.intermediate_size // tp_size)]


def _rope(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    """Llama's queries and keys come as one tensor; Qwen3.5's have gone through norms of their own."""
    q_heads, k_heads = config.num_attention_heads // tp_size, _kv_heads(config, tp_size)
    heads = (q_heads, k_heads) if config.architecture == "qwen3_5" else (q_heads + k_heads, 0)
    return [rope.macros(config.head_dim, config.rope.rotary_dim, *heads)]


def _kv_write(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    if kv_cache_dtype not in HALF_PAGES:
        return []
    return [paged_kv.macros(_kv_heads(config, tp_size), config.head_dim)]


def _kv_heads(config: ModelConfig, tp_size: int) -> int:
    """With more ranks than KV heads, ranks share a head."""
    return max(1, config.num_key_value_heads // tp_size)


# The default macros are those of Qwen3.5-27B, SmolLM2 and labkit-tiny: what these need, a wheel carries compiled.
LADDERS = {
    ladder.op: ladder
    for ladder in (
        Ladder(
            op="rmsnorm",
            rungs=tuple(rmsnorm.RUNGS),
            entries=("rmsnorm", "add_rmsnorm"),
            default_macros=tuple(rmsnorm.macros(size) for size in (5120, 576, 256)),
            specialisations=_rmsnorm,
        ),
        Ladder(
            op="silu_mul",
            rungs=tuple(silu_mul.RUNGS),
            entries=("silu_mul",),
            default_macros=tuple(silu_mul.macros(size) for size in (17408, 1536, 768)),
            specialisations=_silu_mul,
        ),
        Ladder(
            op="rope",
            rungs=tuple(rope.RUNGS),
            entries=("rope",),
            default_macros=(rope.macros(256, 64, 24, 4), rope.macros(64, 64, 12, 0), rope.macros(256, 64, 4, 2)),
            specialisations=_rope,
        ),
        Ladder(
            op="kv_write",
            rungs=tuple(paged_kv.RUNGS),
            entries=("kv_write",),
            default_macros=(paged_kv.macros(4, 256), paged_kv.macros(3, 64), paged_kv.macros(2, 256)),
            specialisations=_kv_write,
        ),
        Ladder(
            op="softmax_online",
            rungs=tuple(softmax_online.RUNGS),
            entries=("softmax_online",),
            default_macros=(softmax_online.macros(8192), softmax_online.macros(33)),
        ),
    )
}

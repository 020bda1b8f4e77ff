"""Every kernel ladder, and which specialisations of it a model needs: what ``labkit build`` compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.device.ladder import Ladder, Macros
from labkit.ops import (
    awq_gemm,
    awq_gemv,
    dequant_int4,
    gemv_half,
    gemv_int8,
    kv_write,
    rmsnorm,
    rope,
    silu_mul,
    softmax_online,
)
from labkit.ops.gemv import ROW_CLASSES
from labkit.quant.int4 import Form

if TYPE_CHECKING:
    from labkit.model.config import ModelConfig

# Group and form of INT4 weights: Qwen3.5-27B's checkpoints have the first three, SmolLM2 the last.
INT4_KINDS: tuple[tuple[int, Form], ...] = (
    (128, "scale_zero"),
    (64, "scale_zero"),
    (32, "scale_zero"),
    (32, "scale_bias"),
)
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
    return [kv_write.macros(_kv_heads(config, tp_size), config.head_dim)]


def _awq_gemv(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    """The checkpoint says how its weights are quantized, the configuration does not: every usual kind."""
    return [awq_gemv.macros(*kind, rows) for kind in INT4_KINDS for rows in ROW_CLASSES]


def _awq_gemm(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    return [awq_gemm.macros(*kind) for kind in INT4_KINDS]


def _dequant_int4(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    return [dequant_int4.macros(*kind) for kind in INT4_KINDS]


def _gemv_half(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    """For the output head and whatever else is in half precision; gemv_int8 is for those who ask for it."""
    return [gemv_half.macros(rows, config.hidden_size) for rows in ROW_CLASSES]


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
            rungs=tuple(kv_write.RUNGS),
            entries=("kv_write",),
            default_macros=(kv_write.macros(4, 256), kv_write.macros(3, 64), kv_write.macros(2, 256)),
            specialisations=_kv_write,
        ),
        Ladder(
            op="softmax_online",
            rungs=tuple(softmax_online.RUNGS),
            entries=("softmax_online",),
            default_macros=(softmax_online.macros(8192), softmax_online.macros(33)),
        ),
        Ladder(
            op="awq_gemv",
            rungs=tuple(awq_gemv.RUNGS),
            entries=("awq_gemv", "awq_gemv_silu_mul"),
            default_macros=tuple(awq_gemv.macros(*kind, rows) for kind in INT4_KINDS for rows in ROW_CLASSES),
            specialisations=_awq_gemv,
        ),
        Ladder(
            op="awq_gemm",
            rungs=tuple(awq_gemm.RUNGS),
            entries=("awq_gemm",),
            default_macros=tuple(awq_gemm.macros(*kind) for kind in INT4_KINDS),
            specialisations=_awq_gemm,
            also=("4_small_m",),
        ),
        Ladder(
            op="dequant_int4",
            rungs=tuple(dequant_int4.RUNGS),
            entries=("dequant_int4",),
            default_macros=tuple(dequant_int4.macros(*kind) for kind in INT4_KINDS),
            specialisations=_dequant_int4,
        ),
        Ladder(
            op="gemv_half",
            rungs=tuple(gemv_half.RUNGS),
            entries=("gemv_half",),
            default_macros=tuple(gemv_half.macros(rows, 5120) for rows in ROW_CLASSES),
            specialisations=_gemv_half,
        ),
        Ladder(
            op="gemv_int8",
            rungs=tuple(gemv_int8.RUNGS),
            entries=("gemv_int8",),
            default_macros=tuple(gemv_int8.macros(rows, 128) for rows in ROW_CLASSES),
        ),
    )
}

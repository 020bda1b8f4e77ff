"""Every kernel ladder, and which specialisations of it a model needs: what ``labkit build`` compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from labkit.device.ladder import Ladder, Macros
from labkit.ops import (
    attention_decode,
    attention_prefill,
    awq_gemm,
    awq_gemv,
    dequant_int4,
    gated_rmsnorm,
    gdn_conv,
    gdn_decode,
    gdn_prefill,
    gemv_half,
    gemv_int8,
    kv_write,
    qk_norm_rope_kv,
    rmsnorm,
    rope,
    silu_mul,
    softmax_online,
    sparse_scores,
)
from labkit.ops.gemv import ROW_CLASSES
from labkit.quant.int4 import Form
from labkit.quant.kv import BITS

if TYPE_CHECKING:
    from labkit.model.config import ModelConfig, Qwen35Config

# Group and form of INT4 weights: Qwen3.5-27B's checkpoints have the first three, SmolLM2 the last.
INT4_KINDS: tuple[tuple[int, Form], ...] = (
    (128, "scale_zero"),
    (64, "scale_zero"),
    (32, "scale_zero"),
    (32, "scale_bias"),
)

# Elements of a head, those that turn, and whether q and k have norms: Qwen3.5 and labkit-tiny, SmolLM2.
KINDS_OF_HEADS = ((256, 64, (True, True)), (64, 64, (False, False)))
# Elements of a head, and query heads that share a KV head: Qwen3.5-27B, SmolLM2, labkit-tiny.
DECODING_HEADS = ((256, 6), (64, 3), (256, 2))


def _rmsnorm(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    """Norms over the hidden state; those of Qwen3.5's heads are part of qk_norm_rope_kv."""
    return [rmsnorm.macros(config.hidden_size)]


def _silu_mul(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    return [silu_mul.macros(config.intermediate_size // tp_size)]


def _qk_norm_rope_kv(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    """Any number of heads; those of Qwen3.5 have norms. Raises KernelArgumentError for sizes that are not built."""
    normed = config.architecture == "qwen3_5"
    bits = BITS.get(kv_cache_dtype, (16, 16))  # what is not quantized has names of its dtype too
    return [qk_norm_rope_kv.macros(config.head_dim, config.rope.rotary_dim, (normed, normed), bits)]


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


def _sparse_scores(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    """For all keys of a page as stored, and for the samples of pages, which are halves."""
    k_bits = BITS.get(kv_cache_dtype, (16, 16))[0]
    return [sparse_scores.macros(config.head_dim, k_bits, False), sparse_scores.macros(config.head_dim, 16, True)]


def _attention_decode(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> Sequence[Macros]:
    """For one row of each sequence; several rows, to check drafted tokens, make other slices."""
    group = max(1, config.num_attention_heads // tp_size // _kv_heads(config, tp_size))
    return attention_decode.decode_macros(config.head_dim, group, BITS.get(kv_cache_dtype, (16, 16)))


def _attention_prefill(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    """Any number of heads, of which any number share a KV head."""
    return [attention_prefill.macros(config.head_dim, *BITS.get(kv_cache_dtype, (16, 16)))]


def _hybrid(config: ModelConfig) -> Qwen35Config | None:
    """The configuration of a model with Gated DeltaNet, whose kernels take any number of heads."""
    return cast("Qwen35Config", config) if config.architecture == "qwen3_5" else None


def _gdn_conv(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    found = _hybrid(config)
    return [gdn_conv.macros(found.linear_key_head_dim, found.linear_conv_kernel_dim)] if found else []


def _gdn_decode(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    found = _hybrid(config)
    return [gdn_decode.macros(found.linear_key_head_dim, found.linear_value_head_dim)] if found else []


def _gdn_prefill(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    found = _hybrid(config)
    return [gdn_prefill.macros(found.linear_key_head_dim, found.linear_value_head_dim)] if found else []


def _gated_rmsnorm(config: ModelConfig, tp_size: int, kv_cache_dtype: str) -> list[Macros]:
    found = _hybrid(config)
    return [gated_rmsnorm.macros(found.linear_value_head_dim)] if found else []


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
        ),
        Ladder(
            op="kv_write",
            rungs=tuple(kv_write.RUNGS),
            entries=("kv_write",),
            default_macros=(kv_write.macros(4, 256), kv_write.macros(3, 64), kv_write.macros(2, 256)),
        ),
        Ladder(
            op="qk_norm_rope_kv",
            rungs=tuple(qk_norm_rope_kv.RUNGS),
            entries=("qk_norm_rope_kv",),
            default_macros=tuple(
                qk_norm_rope_kv.macros(*heads, bits)
                for heads in KINDS_OF_HEADS
                for bits in dict.fromkeys(BITS.values())
            ),
            specialisations=_qk_norm_rope_kv,
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
        Ladder(
            op="attention_decode",
            rungs=tuple(attention_decode.RUNGS),
            entries=("attention_decode",),
            default_macros=tuple(
                each
                for dim, group in DECODING_HEADS
                for bits in dict.fromkeys(BITS.values())
                for each in attention_decode.decode_macros(dim, group, bits)
            ),
            specialisations=_attention_decode,
            also=("4_wide",),
        ),
        Ladder(
            op="attention_prefill",
            rungs=tuple(attention_prefill.RUNGS),
            entries=("attention_prefill",),
            default_macros=tuple(
                attention_prefill.macros(dim, *bits) for dim in (256, 64) for bits in dict.fromkeys(BITS.values())
            ),
            specialisations=_attention_prefill,
        ),
        Ladder(
            op="sparse_scores",
            rungs=tuple(sparse_scores.RUNGS),
            entries=("sparse_scores",),
            default_macros=tuple(
                sparse_scores.macros(dim, *kind)
                for dim in (256, 64)
                for kind in ((16, False), (8, False), (4, False), (16, True))
            ),
            specialisations=_sparse_scores,
        ),
        Ladder(
            op="gdn_conv",
            rungs=tuple(gdn_conv.RUNGS),
            entries=("gdn_conv",),
            default_macros=(gdn_conv.macros(128, 4),),
            specialisations=_gdn_conv,
        ),
        Ladder(
            op="gdn_decode",
            rungs=tuple(gdn_decode.RUNGS),
            entries=("gdn_decode",),
            default_macros=(gdn_decode.macros(128, 128),),
            specialisations=_gdn_decode,
        ),
        Ladder(
            op="gdn_prefill",
            rungs=tuple(gdn_prefill.RUNGS),
            entries=("gdn_prefill",),
            default_macros=(gdn_prefill.macros(128, 128),),
            specialisations=_gdn_prefill,
            also=("2_chunked",),
        ),
        Ladder(
            op="gated_rmsnorm",
            rungs=tuple(gated_rmsnorm.RUNGS),
            entries=("gated_rmsnorm",),
            default_macros=(gated_rmsnorm.macros(128),),
            specialisations=_gated_rmsnorm,
        ),
    )
}

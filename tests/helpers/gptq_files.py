"""GPTQ modules for tests, packed from the published layout: the loader under test shares no code with this.

``qweight`` int32 [K/8, N]: nibble j of word (c, n) is input 8c + j.
``qzeros`` int32 [K/g, N/8]: nibble j of word (i, c) belongs to output 8c + j.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from helpers.packers import State

MINUS_ONE, AS_IS, WORDS_MINUS_ONES = "minus one", "as it is", "words minus ones"  # how a zero point is written


def nibble_words(rows: np.ndarray) -> np.ndarray:
    """Pack [R, C] numbers 0..15 along C, in order, into uint32 [R, ceil(C / 8)]."""
    words = np.zeros((rows.shape[0], -(-rows.shape[1] // 8)), np.uint32)
    for column in range(rows.shape[1]):
        words[:, column // 8] |= rows[:, column].astype(np.uint32) << np.uint32(4 * (column % 8))
    return words


def int32(words: np.ndarray) -> torch.Tensor:
    """The same bits as torch.int32."""
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int32).copy())


def zero_words(zero: np.ndarray, written: str) -> np.ndarray:
    """Zero points [K/g, N] as uint32 [K/g, ceil(N / 8)]."""
    if written == MINUS_ONE:
        return nibble_words((zero - 1) & 15)
    words = nibble_words(zero)
    return words - np.uint32(0x11111111) if written == WORDS_MINUS_ONES else words  # wraps, as GPTQModel's does


def gptq_module(
    q: np.ndarray, zero: np.ndarray, scale: np.ndarray, written: str = MINUS_ONE, order: bool = True
) -> State:
    """The tensors of a module, from q [N, K], z and s [N, K/g]. order: with a g_idx."""
    fields = {
        "qweight": int32(nibble_words(q).T),
        "qzeros": int32(zero_words(zero.T, written)),
        "scales": torch.from_numpy(np.ascontiguousarray(scale.T)),
    }
    if order:
        fields["g_idx"] = (torch.arange(q.shape[1]) // (q.shape[1] // zero.shape[1])).int()
    return fields


def quantize_symmetric(weight: torch.Tensor, group_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round to nearest around 8: q [N, K] in 0..15, z [N, K/g] all 8, s [N, K/g] in float16."""
    w = weight.detach().float().numpy()
    grouped = w.reshape(w.shape[0], -1, group_size)
    scale = np.maximum(np.abs(grouped).max(-1) / 7, 1e-4).astype(np.float16)
    q = np.clip(np.rint(grouped / scale.astype(np.float32)[..., None]) + 8, 0, 15)
    return q.reshape(w.shape).astype(np.int64), np.full(scale.shape, 8, np.int64), scale


def gptq_config(group_size: int = 128, **changes: Any) -> dict[str, Any]:
    """The ``quantization_config`` of such a checkpoint, as Qwen's own uploads have it."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": group_size, "sym": False, "desc_act": False}
    return config | changes


def auto_round_config(group_size: int = 128, **changes: Any) -> dict[str, Any]:
    """The ``quantization_config`` that AutoRound writes."""
    config = {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": group_size,
        "sym": True,
        "data_type": "int",
        "packing_format": "auto_round:auto_gptq",
        "autoround_version": "0.9.0",
    }
    return config | changes

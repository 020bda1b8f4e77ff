"""INT4 weights as the tensors of a file, and what config.json says of them.

AutoAWQ "gemm": qweight int32 [K, N / 8], qzeros int32 [K / g, N / 8], scales half [K / g, N]; packed along N: nibble p
    (bits 4p .. 4p + 3) of word c holds output 8c + AWQ_ORDER[p].
compressed-tensors "pack-quantized", asymmetric: weight_packed int32 [N, K / 8], nibble j of word c holds input 8c + j;
    weight_zero_point int32 [N / 8, K / g], packed likewise along N; weight_scale half [N, K / g];
    weight_shape int64 [2].

Both say w = (q - z) * s with q and z from 0 to 15. N is a multiple of 8, K of the group size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.quant.formats import AWQ_ORDER
from labkit.quant.int4 import Int4Weight

PER_WORD = 8  # nibbles in an int32
VALUES_OF_WORD = tuple(range(PER_WORD))


def can_hold(outputs: int, inputs: int, group_size: int) -> bool:
    """Whether a weight [N, K] can be written in 4 bits: both formats pack 8 outputs into a word."""
    return outputs % PER_WORD == 0 and inputs % group_size == 0


def file_tensors(module: str, weight: Int4Weight, file_format: str) -> dict[str, Tensor]:
    """The tensors of a module by name. file_format: "awq" or "compressed-tensors"; weight: form scale_zero."""
    q, (scale, zero) = weight.unpack(), weight.groups.unbind(-1)
    zero = zero.to(torch.uint8)
    if file_format == "awq":
        fields = {
            "qweight": words(q.T, AWQ_ORDER),
            "qzeros": words(zero.T, AWQ_ORDER),
            "scales": scale.T.contiguous(),
        }
    else:
        fields = {
            "weight_packed": words(q, VALUES_OF_WORD),
            "weight_zero_point": words(zero.T, VALUES_OF_WORD).T.contiguous(),
            "weight_scale": scale.contiguous(),
            "weight_shape": torch.tensor(weight.shape),
        }
    return {f"{module}.{field}": tensor for field, tensor in fields.items()}


def words(values: Tensor, order: Sequence[int]) -> Tensor:
    """uint8 [R, C], values 0 to 15, as int32 [R, C / 8]; nibble p of a word holds value ``order[p]`` of its eight."""
    nibbles = values.unflatten(1, (-1, PER_WORD))[..., list(order)]
    return (nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)).contiguous().view(torch.int32).squeeze(-1)


def quantization_config(file_format: str, group_size: int, unconverted: Sequence[str]) -> dict[str, Any]:
    """The ``quantization_config`` of config.json. unconverted: names of the linear modules that stay 16-bit."""
    if file_format == "awq":
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": 4,
            "group_size": group_size,
            "zero_point": True,
            "modules_to_not_convert": list(unconverted),
        }
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": False,
        "strategy": "group",
        "group_size": group_size,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        # Of transformers: with compressed-tensors 0.20 it cannot hold packed zero points, but dequantizes them.
        "dequantize": True,
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"format": "pack-quantized"}},
        "ignore": list(unconverted),
    }

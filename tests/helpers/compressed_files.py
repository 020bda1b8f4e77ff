"""compressed-tensors modules for tests, quantized and packed by the library itself."""

from __future__ import annotations

from typing import Any

import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from helpers.packers import State
from torch import Tensor


def weight_args(group_size: int, symmetric: bool) -> QuantizationArgs:
    """4-bit integers in groups."""
    return QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=group_size, symmetric=symmetric)


def scheme(group_size: int, symmetric: bool) -> QuantizationScheme:
    """That for every Linear."""
    return QuantizationScheme(targets=["Linear"], weights=weight_args(group_size, symmetric))


def quantization_parameters(weight: Tensor, group_size: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """The library's scales and zero points [N, K/g], from the least and the largest weight of each group."""
    grouped = weight.detach().float().unflatten(1, (-1, group_size))
    return calculate_qparams(grouped.amin(-1), grouped.amax(-1), weight_args(group_size, symmetric))


def packed_module(
    weight: Tensor, group_size: int, *, symmetric: bool, scale_dtype: torch.dtype = torch.bfloat16
) -> tuple[State, Tensor]:
    """``weight`` [N, K] as the library stores it, and what it then is, in float32."""
    scale, zero = quantization_parameters(weight, group_size, symmetric)
    return compress(weight, scale.to(scale_dtype), zero, group_size, symmetric)


def compress(weight: Tensor, scale: Tensor, zero: Tensor, group_size: int, symmetric: bool) -> tuple[State, Tensor]:
    """The same with these scales and zero points [N, K/g]."""
    weight, zero, args = weight.detach().float(), zero.to(torch.int8), weight_args(group_size, symmetric)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    q = quantize(weight, scale, zero, args, dtype=torch.int8)
    exact = dequantize(q, scale.float(), zero, args, dtype=torch.float32)
    return PackedQuantizationCompressor.compress(state, scheme(group_size, symmetric)), exact


def group_config(size: int, symmetric: bool, targets: tuple[str, ...] = ("Linear",), **weights: Any) -> dict[str, Any]:
    """One entry of ``config_groups`` as the library writes it. size: inputs in a group."""
    args = weight_args(size, symmetric).model_dump() | weights
    group = {"targets": list(targets), "weights": args, "input_activations": None, "output_activations": None}
    return group | {"format": "pack-quantized"}


def packed_config(*groups: Any, **changes: Any) -> dict[str, Any]:
    """The ``quantization_config`` of such a checkpoint."""
    config: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
    }
    return config | changes

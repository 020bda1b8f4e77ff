"""Linear layers in torch: y = x W^T for dense and INT4 weights, as they run on a CPU.

Three precisions meet here. Weights stay as the file has them (INT4 stays INT4), activations have the model dtype,
and sums are fp32. With fp32 activations everything is exact: INT4 weights are dequantized, a layer at a time, into
one shared workspace. With bf16 activations few rows go through torch's INT4 kernel, which reads 4-bit weights and is
bound by bandwidth; many rows are worth dequantizing once (the same trade as on a V100: fused kernel for decode,
dequantize and call the BLAS for prefill).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.ops.workspace import HalfWorkspace
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight

INT4_KERNEL_MAX_ROWS = 64  # measured on 2 AVX2 cores: dequantize + fp32 GEMM wins above
INT4_KERNEL_GROUPS = (32, 64, 128, 256)
INT4_KERNEL_ROW_BLOCK = 16  # torch's kernel wants N to be a multiple of this


class Workspace:
    """One fp32 buffer that every dequantized layer of a model shares, as large as the largest of them.

    half: the bounded fp16 one of the layers that run on kernels.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0)
        self.half = HalfWorkspace()

    def take(self, rows: int, cols: int, device: torch.device | str = "cpu") -> Tensor:
        """An uninitialised fp32 [rows, cols] view on ``device``, valid until the next call."""
        if self._buffer.numel() < rows * cols or self._buffer.device != torch.device(device):
            self._buffer = torch.empty(rows * cols, device=device)
        return self._buffer[: rows * cols].view(rows, cols)


class DenseLinear:
    """A dense weight [N, K] multiplied in its own dtype, or in fp32 if the two differ."""

    kernel = "torch matmul"

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def bytes_read(self, rows: int) -> int:
        return self.nbytes


class HalfLinear:
    """A dense weight packed once as fp16 for FBGEMM, multiplied with fp32 activations and fp32 sums.

    CPUs without bf16 instructions multiply bf16 matrices slowly; this reads the same 2 bytes a weight,
    and fp16 holds every bf16 weight of normal size exactly (the loader checks the range).
    """

    kernel = "FBGEMM fp16"

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)
        self.nbytes = weight.numel() * 2

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x.float(), self._packed).to(x.dtype)

    def bytes_read(self, rows: int) -> int:
        return self.nbytes


class DequantizedLinear:
    """An INT4 or INT8 weight with fp32 arithmetic: dequantized into the workspace at each call, exact.

    why: what keeps the weight from the CUDA kernels where the others run on them, "" elsewhere.
    """

    kernel = "dequantize + fp32 GEMM"

    def __init__(self, weight: Int4Weight | Int8Weight, workspace: Workspace, why: str = "") -> None:
        self.weight, self.why, self._workspace = weight, why, workspace
        if why:
            self.kernel = f"{self.kernel} in torch ({why})"

    def __call__(self, x: Tensor) -> Tensor:
        dense = self.weight.dequantize(out=self._workspace.take(*self.weight.shape, self.weight.device))
        return F.linear(x.float(), dense).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def bytes_read(self, rows: int) -> int:
        return self.weight.nbytes


class Int4KernelLinear(DequantizedLinear):
    """An INT4 weight with bf16 activations: torch's INT4 kernel for few rows, dequantized for many.

    The kernel computes (q - 8) * s + c per group with s and c in bf16. The same rounded pairs feed the dequantized
    path, so that both multiply by the same weights.
    """

    kernel = f"torch INT4 kernel up to {INT4_KERNEL_MAX_ROWS} rows, dequantize + fp32 GEMM above"

    def __init__(self, weight: Int4Weight, workspace: Workspace) -> None:
        pairs = _centred(weight).to(torch.bfloat16)
        rounded = Int4Weight(weight.packed, _uncentred(pairs), "scale_bias")
        super().__init__(rounded, workspace)
        self._rows = weight.shape[0]
        pad = -self._rows % INT4_KERNEL_ROW_BLOCK
        q = F.pad(weight.unpack().int(), (0, 0, 0, pad))
        self._kernel_weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        self._kernel_groups = F.pad(pairs, (0, 0, 0, 0, 0, pad)).transpose(0, 1).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > INT4_KERNEL_MAX_ROWS:
            return super().__call__(x)
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.to(torch.bfloat16), self._kernel_weight, self.weight.group_size, self._kernel_groups
        )
        return (y if y.shape[1] == self._rows else y[:, : self._rows]).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self._kernel_bytes

    def bytes_read(self, rows: int) -> int:
        return self.weight.nbytes if rows > INT4_KERNEL_MAX_ROWS else self._kernel_bytes

    @property
    def _kernel_bytes(self) -> int:
        return self._kernel_weight.nbytes + self._kernel_groups.nbytes


def _centred(weight: Int4Weight) -> Tensor:
    """(s, c) of w = (q - 8) s + c for every group, the form of torch's kernel: fp32 [N, K / g, 2]."""
    scale, other = weight.groups.float().unbind(-1)
    offset = (8 - other) * scale if weight.form == "scale_zero" else other + 8 * scale
    return torch.stack((scale, offset), dim=-1)


def _uncentred(pairs: Tensor) -> Tensor:
    """(s, c) of (q - 8) s + c as (s, b) of q s + b, in fp32: 8 s is exact, and so is the sum to fp32."""
    scale, offset = pairs.float().unbind(-1)
    return torch.stack((scale, offset - 8 * scale), dim=-1)

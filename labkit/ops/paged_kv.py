"""Paged keys and values (PagedAttention, Kwon et al. 2023, arXiv:2309.06180).

A page holds 64 tokens of one sequence, for every KV head: [pages, kv_heads, 64, head_dim] for K and for V.
Page 0 is never handed out: padding entries of a page table point to it, and it stays zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labkit.ops.kv_slots import KVSlots
from labkit.ops.kv_write import kv_write
from labkit.ops.layout import PAGE_SIZE
from labkit.quant.kv import (
    KVFormat,
    dequantize_int4,
    dequantize_int8,
    group_size,
    hadamard,
    quantize_int4,
    quantize_int8,
)


@dataclass(frozen=True, eq=False)
class PageStore:
    """The keys or the values of one attention layer.

    bits 16: values [pages, kv_heads, 64, D] in the dtype of the format, params None.
    bits 8: values int8 of that shape; params fp16 [pages, kv_heads, 64], a scale per token and head.
    bits 4: values int32 [pages, kv_heads, 64, D / 8]; params fp16 [pages, kv_heads, 64, D / 64, 2], pairs (s, b).
    """

    values: Tensor
    params: Tensor | None
    bits: int

    @classmethod
    def zeros(
        cls, num_pages: int, kv_heads: int, head_dim: int, bits: int, dtype: torch.dtype, device: torch.device | str
    ) -> PageStore:
        """An empty store; in CPU memory it is only touched where pages are used."""
        shape = (num_pages, kv_heads, PAGE_SIZE)
        if bits == 16:
            return cls(_zeros((*shape, head_dim), dtype, device), None, bits)
        if bits == 8:
            return cls(_zeros((*shape, head_dim), torch.int8, device), _zeros(shape, torch.float16, device), bits)
        pairs = (*shape, head_dim // group_size(head_dim), 2)
        words = _zeros((*shape, head_dim // 8), torch.int32, device)
        return cls(words, _zeros(pairs, torch.float16, device), bits)

    def write(self, new: Tensor, slots: KVSlots) -> None:
        """The definition in torch: store ``new`` [T, kv_heads, D], rotated already where the format rotates."""
        if len(slots.fresh):
            self.values[slots.fresh] = 0
        if self.params is None:
            self.values[slots.page, :, slots.offset] = new.to(self.values.dtype)
            return
        values, params = quantize_int8(new) if self.bits == 8 else quantize_int4(new)
        self.params[slots.fresh] = 0
        self.values[slots.page, :, slots.offset], self.params[slots.page, :, slots.offset] = values, params

    def gather(self, table: Tensor) -> Tensor:
        """Read whole pages as stored: table [..., P] -> fp32 [..., kv_heads, P * 64, D]."""
        pages = self.values[table].transpose(-4, -3)
        if self.params is not None:
            params = self.params[table].movedim(table.dim(), table.dim() - 1)
            pages = dequantize_int8(pages, params) if self.bits == 8 else dequantize_int4(pages, params)
        return pages.to(torch.float32, memory_format=torch.contiguous_format).flatten(-3, -2)


@dataclass(frozen=True, eq=False)
class KVPages:
    """The pages of one attention layer."""

    k: PageStore
    v: PageStore
    format: KVFormat
    head_dim: int

    @classmethod
    def zeros(
        cls,
        num_pages: int,
        kv_heads: int,
        head_dim: int,
        kv_format: KVFormat,
        device: torch.device | str = "cpu",
    ) -> KVPages:
        """An empty pool. Raises ConfigError for heads that the format cannot hold."""
        sizes = num_pages, kv_heads, head_dim
        k, v = (PageStore.zeros(*sizes, bits, kv_format.dtype, device) for bits in (kv_format.k_bits, kv_format.v_bits))
        return cls(k, v, kv_format, head_dim)

    @property
    def num_pages(self) -> int:
        return self.k.values.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.k.values.shape[1]

    @property
    def tensors(self) -> list[Tensor | None]:
        """Values and params of K, then of V: as the kernels take them."""
        return [self.k.values, self.k.params, self.v.values, self.v.params]

    def write(self, k: Tensor, v: Tensor, slots: KVSlots) -> None:
        """Store k, v [T, kv_heads, D] where ``slots`` says; ``k`` as it comes from RoPE, it is rotated here.

        Raises KernelArgumentError as ``kv_write`` does.
        """
        kv_write(k, v, slots, self)

    def rotated(self, x: Tensor) -> Tensor:
        """Queries or keys as they meet in these pages: fp32 and turned where keys are in INT4, else as they are."""
        return hadamard(x) if self.format.rotates else x

    def gather(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Read whole pages: table [..., P] -> K and V as stored, fp32 [..., kv_heads, P * 64, head_dim].

        Keys stay rotated where the format rotates them: they meet rotated queries.
        """
        return self.k.gather(table), self.v.gather(table)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """On a CPU zeros that the system hands out page by page on first use; torch.zeros would write all at once."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)

"""Where the tokens of a step are stored: a page and an offset for each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.ops.checks import check_tensor
from labkit.ops.layout import PAGE_SIZE


@dataclass(frozen=True)
class KVSlots:
    """Where the tokens of a step are stored; the same in every layer.

    page, offset: int64 [T]; tokens of one page lie next to one another, in order. fresh: pages whose first slot is
    written. They are cleared first: what an earlier owner left in them (a NaN, say) must not reach masked positions,
    since 0 * NaN is NaN.

    Raises KernelArgumentError for tensors in CPU memory that do not keep to this; a GPU is not asked, since asking
    would wait for it.
    """

    page: Tensor
    offset: Tensor
    fresh: Tensor

    def __post_init__(self) -> None:
        named = (("page", self.page), ("offset", self.offset), ("fresh", self.fresh))
        for name, tensor in named:
            check_tensor("kv_write", name, tensor)
            if tensor.dtype != torch.int64 or tensor.dim() != 1:
                problem = f"is {tensor.dtype} with {tensor.dim()} dimensions"
                raise KernelArgumentError(f"kv_write: {name} {problem}.", cure="Give int64 tensors of one dimension.")
        if not any(tensor.is_cuda for _, tensor in named):
            _check_slots(self.page.tolist(), self.offset.tolist(), self.fresh.tolist())

    @classmethod
    def at(cls, page: Tensor, offset: Tensor) -> KVSlots:
        """The slots of tokens that may begin pages: those with offset 0 are fresh."""
        if page.shape != offset.shape:
            raise KernelArgumentError(
                f"kv_write: page is {list(page.shape)}, offset {list(offset.shape)}.", cure="Give one of each a token."
            )
        return cls(page, offset, page[offset == 0])


def _check_slots(pages: list[int], offsets: list[int], fresh: list[int]) -> None:
    if len(pages) != len(offsets):
        message = f"kv_write: page has {len(pages)} tokens, offset {len(offsets)}."
        raise KernelArgumentError(message, cure="Give one of each for every token.")
    if pages and (min(pages) < 0 or min(offsets) < 0 or max(offsets) >= PAGE_SIZE):
        message = f"kv_write: page is {min(pages)} or more, offset {min(offsets)} to {max(offsets)}."
        raise KernelArgumentError(message, cure=f"Pages count from 0, and offsets are 0 to {PAGE_SIZE - 1}.")
    begun = [page for page, offset in zip(pages, offsets, strict=True) if offset == 0]
    if set(begun) != set(fresh):
        message = f"kv_write: fresh is {sorted(set(fresh))}, but offset 0 is written in {sorted(set(begun))}."
        raise KernelArgumentError(message, cure="Make slots with KVSlots.at.")
    steps = zip(pages, offsets, pages[1:], offsets[1:], strict=False)
    broken = sum(p == q and i + 1 != j for p, i, q, j in steps)
    runs = sum(p != q for p, q in itertools.pairwise(pages)) + bool(pages)
    if broken or runs != len(set(pages)):
        cure = "Put the tokens of a page next to one another, in order."
        raise KernelArgumentError("kv_write: the tokens of a page lie apart or out of order.", cure=cure)

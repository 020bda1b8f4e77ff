"""Which pages of its sequence each tile of queries attends to, where prefill attention is sparse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.ops.checks import check_tensor
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE
from labkit.ops.paged_batch import PagedBatch


@dataclass(frozen=True, eq=False)
class KeptPages:
    """For every tile of 64 rows (``PagedBatch.tile_starts``) and query head the pages that it reads.

    index: int32 [tiles, heads, most], places in the sequence's page table (0: its first 64 tokens), ascending and each
    once; the pages that hold the tile's own rows are always among them. What stands behind the first ``count`` is not
    read. count: int32 [tiles, heads].
    """

    index: Tensor
    count: Tensor

    @classmethod
    def all_of(cls, batch: PagedBatch, heads: int) -> KeptPages:
        """Every page that a row of the tile may see: attention as without a list."""
        ends = [end for _, end in tile_pages(batch)]
        count = torch.tensor(ends, dtype=torch.int32)[:, None].repeat(1, heads)
        index = torch.arange(max(ends), dtype=torch.int32).repeat(batch.tiles, heads, 1)
        device = batch.table.device
        return cls(index.to(device), count.to(device))

    def check(self, op: str, batch: PagedBatch, heads: int) -> None:
        """Raises KernelArgumentError for other shapes, dtypes or devices than the batch asks for.

        In CPU memory the lists themselves are looked at too; a GPU is not waited for. There its kernels pass over
        places behind a tile's last row, and trust the rest.
        """
        wanted = (batch.tiles, heads)
        for name, tensor in (("index", self.index), ("count", self.count)):
            check_tensor(op, f"the kept pages' {name}", tensor)
        for name, tensor, shape in (
            ("index", self.index, (*wanted, *self.index.shape[2:])),
            ("count", self.count, wanted),
        ):
            fits = tensor.shape == shape and tensor.dtype == torch.int32 and tensor.device == batch.table.device
            if not fits or tensor.dim() != (3 if name == "index" else 2):
                found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"
                message = f"{op}: the kept pages' {name} is {found}."
                expected = f"int32 {[*wanted, 'most'] if name == 'index' else list(wanted)} on {batch.table.device}"
                raise KernelArgumentError(message, cure=f"Give {expected}: tiles, heads.")
        if self.index.device.type == "cpu":
            self._check_lists(op, batch)

    def _check_lists(self, op: str, batch: PagedBatch) -> None:
        tiles = torch.tensor(tile_pages(batch))
        first, end = tiles[:, :1, None], tiles[:, 1:, None]
        place = torch.arange(self.index.shape[2])
        read = place < self.count[..., None]
        inside = (self.index >= 0) & (self.index < end)
        rising = torch.ones_like(read)
        rising[..., 1:] = self.index[..., 1:] > self.index[..., :-1]
        own = (read & (self.index >= first)).sum(-1) == (end - first)[..., 0]
        counts = (self.count >= 1) & (self.count <= self.index.shape[2])
        if not bool(((inside & rising) | ~read).all() and own.all() and counts.all()):
            cure = "List places in the page table in ascending order, the pages of the tile's own rows among them."
            raise KernelArgumentError(f"{op}: the lists of kept pages do not fit the batch.", cure=cure)


def tile_pages(batch: PagedBatch) -> list[tuple[int, int]]:
    """Of each tile: the place of the page with its first row, and the place behind that with its last."""
    found = []
    for first, behind, length in batch.spans:
        for row in range(0, behind - first, QUERY_TILE):
            start = length - (behind - first) + row
            last = min(start + QUERY_TILE, length) - 1
            found.append((start // PAGE_SIZE, last // PAGE_SIZE + 1))
    return found

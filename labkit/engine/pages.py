"""Who holds which page of the KV pool, and which row of the GDN state pool.

A page is an integer: an index into the first dimension of the KV tensors ``[pages, kv_heads, 64, head_dim]``.
Nothing here knows about tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.ops.layout import PAGE_SIZE


class PageAccountingError(RuntimeError):
    """The books do not balance: a bug in labkit, never a fault of the request."""


def pages_for(num_tokens: int, page_size: int = PAGE_SIZE) -> int:
    """Pages that hold ``num_tokens`` tokens.

    >>> pages_for(64), pages_for(65)
    (1, 2)
    """
    return -(-num_tokens // page_size)


class PageAllocator:
    """Hands out the indices ``0 .. num_pages - 1``, each to one holder at a time.

    Pages freed last are given out first, so that a stale reader meets foreign data at once, not much later.
    """

    noun: ClassVar[str] = "page"

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        """Indices that nobody holds."""
        return len(self._free)

    def allocate(self, n: int) -> list[int]:
        """Take ``n`` indices. Raises PageAccountingError if fewer are free: callers look at ``num_free`` first."""
        if not 0 <= n <= self.num_free:
            raise PageAccountingError(f"asked for {n} {self.noun}s with {self.num_free} free")
        taken = [self._free.pop() for _ in range(n)]
        self._held.update(taken)
        return taken

    def free(self, pages: Sequence[int]) -> None:
        """Give indices back. Raises PageAccountingError, and frees none, if one is not out or stands there twice."""
        if len(set(pages)) != len(pages) or not self._held.issuperset(pages):
            raise PageAccountingError(f"{self.noun}s {list(pages)} freed, but held are {sorted(self._held)}")
        self._held.difference_update(pages)
        self._free.extend(reversed(pages))

    def balances(self, holdings: Sequence[int]) -> bool:
        """True if ``holdings`` are all the indices that are out, and with the free ones give each index once."""
        return self._held == set(holdings) and sorted([*holdings, *self._free]) == list(range(self.num_pages))


class SlotAllocator(PageAllocator):
    """The same bookkeeping for rows of the GDN state pool: one per running sequence."""

    noun: ClassVar[str] = "slot"

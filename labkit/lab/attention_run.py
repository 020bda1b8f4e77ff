"""Attention over random pages on the simulator, judged against torch: what the chapters about attention show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.lab.op_counts import CountedRun, simulated
from labkit.ops.attention_decode import attention_decode
from labkit.ops.attention_prefill import attention_prefill
from labkit.ops.attention_torch import attend
from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages
from labkit.quant.kv import KVFormat
from labkit.sim.api import Result

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "attention_decode": attention_decode,
    "attention_prefill": attention_prefill,
}
TOLERANCE = 2e-3  # of a row, as the 2-norm of its error over its own


@dataclass(frozen=True)
class Operands:
    """q: fp16 [rows, heads, D], turned where the pages turn; the pages and who attends."""

    q: Tensor
    pages: KVPages
    batch: PagedBatch

    @property
    def kv_bytes(self) -> int:
        """Of K and V, scales included, that the sequences hold: what has to be read at least once."""
        tokens = int(self.batch.lengths.sum())
        return tokens * self.pages.kv_heads * self.pages.format.bytes_per_head(self.pages.head_dim)


@dataclass(frozen=True)
class AttentionRun(CountedRun):
    """A rung's run. y: fp16 [rows, heads, D], what it gave; exact: fp32, what torch gives for the same pages."""

    rung: str
    operands: Operands
    y: Tensor
    exact: Tensor
    result: Result

    @property
    def error(self) -> float:
        """Of the worst row of a head."""
        return float(((self.y.float() - self.exact).norm(dim=-1) / self.exact.norm(dim=-1)).max())

    @property
    def matches(self) -> bool:
        """Every row is there, and near enough."""
        return self.error <= TOLERANCE  # NaN is not


def random_operands(
    lengths: Sequence[int],
    *,
    rows: Sequence[int] | None = None,
    heads: int = 6,
    kv_heads: int = 1,
    head_dim: int = 64,
    kv: str = "fp16",
) -> Operands:
    """Sequences of these lengths in scattered pages, of which the last ``rows`` (None: one each) ask.

    kv: "fp16", "int8", "int4" or "k8v4". Draws from torch's generator. Raises ConfigError for another format.
    """
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    free = (torch.randperm(sum(counts)) + 1).tolist()
    tables = [[free.pop() for _ in range(count)] for count in counts]
    pages = KVPages.zeros(sum(counts) + 1, kv_heads, head_dim, KVFormat.named(kv, torch.float16))
    for length, table in zip(lengths, tables, strict=True):
        _store(pages, length, table)
    asking = rows or [1] * len(lengths)
    q = torch.randn(sum(asking), heads, head_dim).half()
    return Operands(pages.rotated(q).half(), pages, PagedBatch.of(asking, lengths, tables))


def _store(pages: KVPages, length: int, table: Sequence[int]) -> None:
    """Random keys and values, by the definition of the format."""
    positions = torch.arange(length)
    slots = KVSlots.at(torch.tensor(table)[positions // PAGE_SIZE], positions % PAGE_SIZE)
    k, v = (torch.randn(length, pages.kv_heads, pages.head_dim) for _ in range(2))
    pages.k.write(pages.rotated(k), slots)
    pages.v.write(v, slots)


def run_rung(op: str, rung: str, operands: Operands, *, trace: bool = False, **settings: Any) -> AttentionRun:
    """Run a rung of "attention_decode" or "attention_prefill" as the op launches it. settings: of the operation.

    The operation has to launch one kernel: raises KernelLaunchError otherwise, and what the operation raises.
    """
    given = operands.q, operands.pages, operands.batch
    y, result = simulated(OPERATIONS[op], *given, rung=rung, trace=trace, **settings)
    exact = attend(operands.q.float(), operands.pages, operands.batch, operands.pages.head_dim**-0.5)
    return AttentionRun(rung, operands, y, exact, result)

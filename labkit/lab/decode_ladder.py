"""The rungs of decode attention in chapter 09: what a token costs in their loops, and runs of changed sources."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

import labkit.sim
from labkit.device.sources import read_rung
from labkit.errors import KernelArgumentError
from labkit.lab.attention_run import AttentionRun, Operands, random_operands, run_rung
from labkit.lab.changed_rung import changed_rung
from labkit.lab.roofline import V100
from labkit.lab.source_text import texts_of
from labkit.ops.attention_decode import RUNGS, macros
from labkit.ops.attention_decode_plan import WARPS, Slices, most_queries
from labkit.ops.attention_torch import attend
from labkit.ops.checks import WARP
from labkit.ops.multiprocessors import V100_PROCESSORS
from labkit.quant.kv import KVFormat

DECODE = "attention_decode"
# Tokens: what a longer context adds is what the loop costs. The last rungs go by 32 tokens for each of four warps.
SHORT = {"4_wide": 128, "5_tensor_cores": 128}
SECTOR = 32  # bytes
ISSUED = V100_PROCESSORS * 4 * WARP * 1.53e9  # instructions of threads that a V100 starts in a second at most
KIND = "kind "  # before a class of instructions, among counts of other things
CHANGEABLE = RUNGS[:2]  # the others may divide the context among blocks


@dataclass(frozen=True)
class LoopCost:
    """What a token more costs one block of a rung, for all queries of one KV head; counted by the simulator.

    instructions: of threads in PTX, moves left out: those between registers mostly vanish. sectors: asked of memory or
    the caches. mma: of warps. kinds: instructions of warps by class, the most frequent first, without moves. nbytes: of
    the token's key and value in their pages, scales included.
    """

    rung: str
    instructions: float
    sectors: float
    requests: float
    conflicts: float
    mma: float
    nbytes: int
    kinds: dict[str, float]

    @property
    def per_byte(self) -> float:
        """Instructions for each byte of K and V."""
        return self.instructions / self.nbytes

    @property
    def times_asked(self) -> float:
        """Bytes of all sectors that are asked for, over the bytes of K and V."""
        return SECTOR * self.sectors / self.nbytes

    def seconds(self, tokens: int) -> tuple[float, float]:
        """(on the bus, to start the instructions) of so many tokens on one whole V100 at least: modelled."""
        return tokens * self.nbytes / V100.bandwidth, tokens * self.instructions / ISSUED


def loop_cost(rung: str, *, group: int = 6, head_dim: int = 256, kv: str = "fp16") -> LoopCost:
    """Run the rung on a short and on a longer context of one KV head, in one split, and take the difference.

    group: query heads on the KV head. Raises what ``run_rung`` raises.
    """
    tokens = SHORT.get(rung, 32)
    before, after = (_counts(rung, length, group, head_dim, kv) for length in (tokens, 2 * tokens))
    added = {name: (after[name] - before[name]) / tokens for name in after}
    kinds = {name.removeprefix(KIND): added.pop(name) for name in list(added) if name.startswith(KIND)}
    ordered = dict(sorted(kinds.items(), key=lambda item: -item[1]))
    nbytes = KVFormat.named(kv, torch.float16).bytes_per_head(head_dim)
    return LoopCost(rung=rung, nbytes=nbytes, kinds=ordered, instructions=WARP * sum(kinds.values()), **added)


def _counts(rung: str, tokens: int, group: int, head_dim: int, kv: str) -> Counter[str]:
    """By the fields of LoopCost; kinds by their names behind KIND."""
    operands = random_operands([tokens], heads=group, head_dim=head_dim, kv=kv)
    counters = run_rung(DECODE, rung, operands, split_count=1).counters
    load = counters.global_load
    counts = {"sectors": load.sectors, "requests": load.requests}
    counts |= {"conflicts": counters.bank_conflicts, "mma": counters.mma}
    kinds = {KIND + kind: warps for kind, (warps, _) in counters.instructions().items() if kind != "move"}
    return Counter(counts | kinds)


def conflicts_by_line(run: AttentionRun) -> dict[str, int]:
    """Lines of the source that lose cycles to bank conflicts -> how many, the most first."""
    source = read_rung(DECODE, run.rung)
    lost: dict[str, int] = {}
    for (file, line), counts in run.counters.by_line().items():
        cycles = counts.shared_load.conflicts + counts.shared_store.conflicts + counts.shared_atomic.conflicts
        if cycles:
            text = next((t for name, t in source.headers.items() if file.endswith(name)), source.text)
            lost[text.splitlines()[line - 1].strip()] = cycles
    return dict(sorted(lost.items(), key=lambda item: -item[1]))


def block_text(start: str, rung: str) -> str:
    """The real source from the first line that begins with ``start`` to the brace that closes it, its indent taken off.

    In the rung's file or a header of it. Raises KeyError if no line begins so.
    """
    for text in texts_of(DECODE, rung):
        lines = text.splitlines()
        first = next((i for i, line in enumerate(lines) if line.strip().startswith(start)), None)
        if first is None:
            continue
        indent = len(lines[first]) - len(lines[first].lstrip())
        closing = (" " * indent + "}", " " * indent + "};")
        last = next(i for i in range(first, len(lines)) if lines[i] in closing or _closed(lines[first], i == first))
        return "\n".join(line[indent:] if line.startswith(" ") else line for line in lines[first : last + 1])
    raise KeyError(f"no line of {DECODE}/{rung} and its headers begins with {start!r}")


def _closed(line: str, first: bool) -> bool:
    """Whether what begins on this line also ends on it."""
    return first and line.rstrip().endswith(("}", ";")) and line.count("{") == line.count("}")


def run_changed(rung: str, old: str, new: str, operands: Operands) -> AttentionRun:
    """Run one of the first two rungs with ``new`` in place of ``old``, in its file or in a header of it.

    Every place is changed where ``old`` stands. Raises ValueError if it stands nowhere, and KernelArgumentError for the
    other rungs. Raises KernelBuildError.
    """
    if rung not in CHANGEABLE:
        raise KernelArgumentError(f"{rung} is launched in another way.", cure=f"Change {' or '.join(CHANGEABLE)}.")
    q, pages, batch = operands.q, operands.pages, operands.batch
    heads, group = q.shape[1], q.shape[1] // pages.kv_heads
    slices = Slices.of(batch.most_rows, group, most_queries(rung, pages.k.bits))
    one_each = -(-heads // WARPS), batch.most_rows, batch.sequences
    grid = one_each if rung == RUNGS[0] else (slices.count * pages.kv_heads, 1, batch.sequences)
    y, scale = torch.zeros_like(q), pages.head_dim**-0.5
    stores = [tensor for store in (pages.k, pages.v) for tensor in (store.values, store.params)]
    arguments: list[Any] = [q, *stores, batch.table, batch.lengths, batch.row_starts, None, y, None, None, None]
    with changed_rung(DECODE, rung, old, new) as (file, folder):
        result = labkit.sim.run(
            file,
            name=DECODE,
            grid=grid,
            block=WARPS * WARP,
            args=[*arguments, batch.table.shape[1], pages.kv_heads, group, 0, 0, scale],
            macros=macros(pages.head_dim, pages.k.bits, pages.v.bits, slices.queries),
            include_dirs=[folder],
        )
    return AttentionRun(rung, operands, y, attend(q.float(), pages, batch, scale), result)

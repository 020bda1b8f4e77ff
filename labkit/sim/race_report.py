"""From racing pairs of accesses to findings: drops the harmless ones, asks ``fences`` about the rest, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labkit.sim.accesses import Access, Flags, Integers, Rows
from labkit.sim.coalescing import LANES
from labkit.sim.fences import Question, Record, ordered

# How many pairs of two instructions are followed exactly, of how many of their executions; a fault shows in most.
PAIRS, EXECUTIONS = 8, 24
MISSING_FENCE = "missing-fence"
MISSING_READER_FENCE = "missing-fence of the reader"
VERBS = {"load": "loads", "store": "stores", "atomic": "updates atomically"}
PAST = {"load": "loads", "store": "has stored", "atomic": "updates atomically"}


def granule_shift(accesses: list[Access]) -> int:
    """log2 of the bytes that accesses are compared by: the smallest of them, at most 8."""
    return min(3, min(access.nbytes for access in accesses).bit_length() - 1)


def report_pairs(
    accesses: list[Access], pairs: tuple[Rows, Rows], granule: int, record: Record, only: str = ""
) -> None:
    """Reports pairs (earlier, later) of accesses that no barrier orders, one finding for two instructions.

    only: "missing-fence" for accesses that are no races for themselves, since they are volatile; "between blocks" for
    those that are none within a block.
    """
    followed = record.hands_on() or bool(only)
    flags = _flags(accesses)
    for together in _by_sites(accesses, pairs):
        chosen = np.unique(np.linspace(0, len(together) - 1, EXECUTIONS if followed else len(together)).astype(int))
        for first, second in (together[each] for each in chosen):
            earlier, later = accesses[int(first.entry[0])], accesses[int(second.entry[0])]
            racing = _matters(earlier, later, first, second, granule, flags)
            if only == "between blocks":
                racing &= first.block != second.block
            first, second = first.take(racing), second.take(racing)
            verdict = _first_fault(earlier, later, first, second, record if followed else None)
            if verdict is not None and (only != MISSING_FENCE or verdict[0].startswith(MISSING_FENCE)):
                _report(verdict[0], earlier, later, first, second, verdict[1])


def _by_sites(accesses: list[Access], pairs: tuple[Rows, Rows]) -> list[list[tuple[Rows, Rows]]]:
    """The pairs of each two executed instructions, gathered by their places in the program."""
    gathered: dict[tuple[Any, ...], list[tuple[Rows, Rows]]] = {}
    for first, second in _by_instructions(pairs):
        earlier, later = accesses[int(first.entry[0])], accesses[int(second.entry[0])]
        gathered.setdefault((earlier.team, earlier.site, later.team, later.site), []).append((first, second))
    return list(gathered.values())


def _first_fault(
    earlier: Access, later: Access, first: Rows, second: Rows, record: Record | None
) -> tuple[str, int] | None:
    """(kind of fault, number of the pair) of the first pair that nothing orders; without a record, nothing does."""
    if not len(first):
        return None
    if record is None:
        return "shared-race" if earlier.shared else "global-race", 0
    for each in np.unique(np.linspace(0, len(first) - 1, PAIRS).astype(int)):
        verdict = _verdict(earlier, later, first, second, int(each), record)
        if verdict:
            return verdict, int(each)
    return None


def _by_instructions(pairs: tuple[Rows, Rows]) -> Iterator[tuple[Rows, Rows]]:
    """The pairs of each two executed instructions."""
    first, second = pairs
    key = first.entry * (1 + second.entry.max()) + second.entry
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(key[order]) != 0])
    for chosen in np.split(order, starts[1:]):
        yield first.take(chosen), second.take(chosen)


def _flags(accesses: list[Access]) -> Integers:
    """Places in shared memory that threads look at in a loop until what they find there lets them go on."""
    polls = [access.places for access in accesses if access.shared and access.volatile and access.polls]
    return np.unique(np.concatenate(polls)) if polls else np.zeros(0, np.int64)


def _matters(earlier: Access, later: Access, first: Rows, second: Rows, granule: int, flags: Integers) -> Flags:
    """Not harmless: two stores of one value are, and volatile accesses to a flag in shared memory."""
    if earlier.shared and earlier.volatile and later.volatile:
        return np.isin(earlier.places[first.lane], flags, invert=True)
    if earlier.kind != "store" or later.kind != "store" or earlier.values is None or later.values is None:
        return np.ones(len(first), bool)
    mine = earlier.value_bytes(first.lane, first.part * granule, granule)
    return np.asarray(mine != later.value_bytes(second.lane, second.part * granule, granule))


def _verdict(earlier: Access, later: Access, first: Rows, second: Rows, index: int, record: Record) -> str:
    """The kind of fault of one pair; "" where barriers, fences and flags order it."""
    address = int(earlier.places[first.lane[index]])
    question = Question(earlier, int(first.thread[index]), address, later, int(second.thread[index]))
    if earlier.shared:
        return "" if ordered(question, record, reader_fences=False) else "shared-race"
    same_block = first.block[index] == second.block[index]  # they share an L1 cache, which then holds nothing old
    if ordered(question, record, reader_fences=not same_block):
        return ""
    if ordered(question, record, reader_fences=False):
        return (
            "global-race" if earlier.strong else MISSING_READER_FENCE
        )  # a flag's own word; a fence makes it no atomic
    return MISSING_FENCE if ordered(question, record, writer_fences=False, reader_fences=False) else "global-race"


def _report(kind: str, earlier: Access, later: Access, first: Rows, second: Rows, index: int) -> None:
    thread, other = int(second.thread[index]), int(first.thread[index])
    team, other_team = later.team, earlier.team
    block, number = divmod(thread - team.first_thread, team.block_threads)
    other_block, other_number = divmod(other - other_team.first_thread, other_team.block_threads)
    team.findings.report(
        MISSING_FENCE if kind == MISSING_READER_FENCE else kind,
        later.site,
        _text(kind, earlier, later, first, second, index),
        blocks=block,
        threads=number,
        address=int(later.addresses()[second.lane[index]]),
        other_site=other_team.findings.kernel.sites[earlier.site],
        other_thread=other_number,
        other_block=other_block,
        count=len(np.unique(second.thread)),
    )


def _text(kind: str, earlier: Access, later: Access, first: Rows, second: Rows, index: int) -> str:
    space = "shared" if later.shared else "global"
    same_block = bool(first.block[index] == second.block[index])
    if not same_block and earlier.kind == later.kind == "atomic":
        return f"updates a {space} word that another block updates too, with an atomic of the scope of a block (_block)"
    if earlier.time == later.time:
        return f"stores one value to a {space} word while another thread stores a different one: which stays is chance"
    what = f"{VERBS[later.kind]} a {space} word that another thread {PAST[earlier.kind]}"
    if kind == MISSING_READER_FENCE:
        return f"{what}, and there is no fence between reading the flag and this: __threadfence() there orders them"
    if kind == MISSING_FENCE:
        return (
            f"{what}, handed over without a fence: {_fence(earlier, later, same_block)} between the data and the flag"
        )
    if not same_block:
        cure = "; read it with an atomic or a volatile load" if earlier.strong and later.kind == "load" else ""
        return f"{what}; the two blocks do not wait for each other{cure}"
    within_warps = (first.thread // LANES == second.thread // LANES).all()
    return f"{what}, with no {'__syncwarp()' if within_warps else '__syncthreads()'} between them"


def _fence(earlier: Access, later: Access, same_block: bool) -> str:
    if later.team.device != earlier.team.device:
        return "__threadfence_system()"
    return "__threadfence_block()" if same_block else "__threadfence()"

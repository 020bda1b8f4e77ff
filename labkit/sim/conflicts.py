"""Which accesses may race: a quick filter over all of them, then an exact search over the words that it leaves.

Two accesses conflict when different threads touch the same word, at least one writes, and not both are strong (atomic
or volatile). They race unless something orders them: a barrier of their block, a barrier of their warp, or what
``fences`` finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from labkit.sim.accesses import Access, Flags, Integers, Rows, joined, rows_of
from labkit.sim.coalescing import LANES, Array

Words = Callable[[Access], Integers]
"""The words that an access touches, numbered from 0: shape (lanes, words of an access); negative: of no interest."""

NOBODY = -1


def contested_rows(accesses: list[Access], words: Words, size: int, one_block: bool) -> Rows | None:
    """All accesses to words that one thread writes and another one uses; None where there are none."""
    places = [words(access) for access in accesses]
    clash = _contested(accesses, places, size, one_block)
    if not clash.any():
        return None
    parts = [
        rows_of(access, entry, place, clash[place] & (place >= 0), one_block)
        for entry, (access, place) in enumerate(zip(accesses, places, strict=True))
    ]
    return joined([part for part in parts if part is not None])


def _contested(accesses: list[Access], places: list[Integers], size: int, one_block: bool) -> Flags:
    """Words with a writer and another user. One pass notes a writer of each word, a second one compares."""
    owners = {strong: np.full(size + 1, NOBODY, np.int32) for strong in (False, True)}  # one more: where place is -1
    threads = [access.threads(one_block)[:, None] + access.team.first_thread for access in accesses]
    for access, place, thread in zip(accesses, places, threads, strict=True):
        if access.writes:
            owners[access.strong][place] = thread
    for owner in owners.values():
        owner[-1] = NOBODY
    clash, shared_by_strong = np.zeros(size + 1, bool), np.zeros(size + 1, bool)
    for access, place, thread in zip(accesses, places, threads, strict=True):
        clash[place[_foreign(owners[False][place], thread)]] = True
        if access.strong and access.writes:
            shared_by_strong[place[_foreign(owners[True][place], thread)]] = True
    for access, place, thread in zip(accesses, places, threads, strict=True):
        if not access.strong:
            owner = owners[True][place]
            clash[place[_foreign(owner, thread) | ((owner != NOBODY) & shared_by_strong[place])]] = True
    return clash


def _foreign(owner: Array, thread: Integers) -> Flags:
    result: Flags = (owner != thread) & (owner != NOBODY)
    return result


def racing_pairs(accesses: list[Access], words: Words, size: int, one_block: bool) -> tuple[Rows, Rows] | None:
    """Pairs (earlier, later) of conflicting accesses that no barrier orders; None where there are none.

    size: number of words; one_block: block 0 stands for all, since all do the same.
    """
    rows = contested_rows(accesses, words, size, one_block)
    if rows is None:
        return None
    first, second = unordered_pairs(rows)
    guess = _guesses(rows, accesses)
    harmless = (guess[first] & rows.strong[second]) | (guess[second] & rows.strong[first])
    first, second = first[~harmless], second[~harmless]
    return (rows.take(first), rows.take(second)) if len(first) else None


def in_all_blocks(accesses: list[Access], pairs: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    """Pairs of block 0, and beside those whose outcome depends on what was stored, their like in all other blocks."""
    first, second = pairs
    store = np.array([access.kind == "store" for access in accesses])
    varied = np.array([any(len(value) > 1 for value in access.values or ()) for access in accesses])
    both = store[first.entry] & store[second.entry]
    chosen = np.flatnonzero(both & (varied[first.entry] | varied[second.entry]))
    if not len(chosen):
        return pairs
    team = accesses[0].team
    elsewhere = np.arange(1, team.blocks)
    copies = (_moved(rows.take(chosen), elsewhere, team.block_threads) for rows in pairs)
    return joined([first, next(copies)]), joined([second, next(copies)])


def _moved(rows: Rows, blocks: Integers, block_threads: int) -> Rows:
    """The same rows in other blocks, whose numbers are given as distances."""
    copies = rows.take(np.tile(np.arange(len(rows)), len(blocks)))
    distance = np.repeat(blocks, len(rows))
    moved = distance * block_threads
    return replace(copies, block=copies.block + distance, thread=copies.thread + moved, lane=copies.lane + moved)


def _guesses(rows: Rows, accesses: list[Access]) -> Flags:
    """Plain loads whose value is only a guess: of instructions after which threads compare-and-swap the same word.

    So begin the loops by which CUDA programs build atomic operations of their own; the swap finds out a wrong guess.
    A load after the last swap is none: nothing tells whether what it brings still holds.
    """
    plain_load = ~rows.write & ~rows.strong
    swap = np.array([access.swaps for access in accesses])[rows.entry]
    if not swap.any():
        return np.zeros(len(rows), bool)
    mine = rows.thread * (rows.word.max() + 1) + rows.word
    swapped, place = np.unique(mine[swap], return_inverse=True)
    last = np.zeros(len(swapped), np.int64)
    np.maximum.at(last, place, rows.time[swap])
    found = np.minimum(np.searchsorted(swapped, mine), len(swapped) - 1)
    site = np.array([access.site for access in accesses])[rows.entry]
    guessing = np.unique(site[plain_load & (swapped[found] == mine) & (rows.time < last[found])])
    return np.asarray(plain_load & np.isin(site, guessing))


def unordered_pairs(rows: Rows) -> tuple[Integers, Integers]:
    """Row numbers (earlier, later) of conflicting accesses that no barrier orders.

    Every access is compared with the last write before it and every read with the next write after it: if any two
    accesses to a word race, two of these do. Strong writes are compared with plain accesses through two of them.
    """
    order = np.argsort(rows.word, kind="stable")
    word = rows.word[order]
    position = np.arange(len(order))
    start = np.maximum.accumulate(np.where(np.r_[True, word[1:] != word[:-1]], position, 0))
    end = (
        len(order)
        - 1
        - np.maximum.accumulate(np.where(np.r_[True, word[::-1][1:] != word[::-1][:-1]], position, 0))[::-1]
    )
    plain_write = (rows.write & ~rows.strong)[order]
    before = _last_before(plain_write, position)
    after = len(order) - 1 - _last_before(plain_write[::-1], position)[::-1]
    pairs = [(before, position, before >= start), (position, after, (after <= end) & ~rows.write[order])]
    pairs += _with_strong(rows, order, position, start, end)
    first = np.concatenate([a[ok] for a, _, ok in pairs])
    second = np.concatenate([b[ok] for _, b, ok in pairs])
    first, second = order[np.minimum(first, second)], order[np.maximum(first, second)]
    racing = ~_ordered(rows, first, second)
    return first[racing], second[racing]


def _last_before(marked: Flags, position: Integers) -> Integers:
    """The last marked position before each one; -1 where there is none."""
    latest = np.maximum.accumulate(np.where(marked, position, -1))
    return np.r_[-1, latest[:-1]]


def _with_strong(
    rows: Rows, order: Integers, position: Integers, start: Integers, end: Integers
) -> list[tuple[Integers, Integers, Flags]]:
    """Plain accesses beside the first and the last strong write to their word."""
    strong_write, plain = (rows.write & rows.strong)[order], ~rows.strong[order]
    if not strong_write.any():
        return []
    last = np.maximum.accumulate(np.where(strong_write, position, -1))[end]
    backwards = np.maximum.accumulate(np.where(strong_write[::-1], position, -1))[::-1]
    first = (len(order) - 1 - backwards)[start]
    return [(first, position, plain & (first <= end)), (last, position, plain & (last >= start))]


def _ordered(rows: Rows, first: Integers, second: Integers) -> Flags:
    """Pairs of one thread, or with a barrier of their block or warp between them."""
    same_thread = rows.thread[first] == rows.thread[second]
    block_barrier = (rows.block[first] == rows.block[second]) & (rows.epoch[first] != rows.epoch[second])
    same_warp = rows.thread[first] // LANES == rows.thread[second] // LANES
    warp_barrier = same_warp & (rows.warp_epoch[first] != rows.warp_epoch[second])
    result: Flags = same_thread | block_barrier | warp_barrier
    return result

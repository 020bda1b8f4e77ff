"""Which multiprocessor reads which pages when the context of a decode is divided over blocks (split-KV)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Any

from labkit.lab.drawing import BLOCKS, EMPTY, box, counted, document, line, percent, words
from labkit.lab.picture import SvgPicture
from labkit.ops.attention_decode_plan import Slices, most_queries, resident_blocks
from labkit.ops.attention_decode_plan import splits as planned_splits
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.multiprocessors import V100_PROCESSORS

WIDTH, TALL, LEFT, TOP, MARGIN = 600, 320, 60, 48, 8  # pixels; TALL: of all lines


@dataclass(frozen=True)
class Block:
    """A thread block with tokens: the pages first to behind - 1 of a sequence's table, for some queries of a KV head.

    part: which KV head, and which slice of its queries where a block does not take all.
    """

    sequence: int
    part: int
    split: int
    first: int
    behind: int

    @property
    def pages(self) -> int:
        return self.behind - self.first


@dataclass(frozen=True)
class Job:
    """A block in a place: one of the blocks that a multiprocessor holds. start: pages read there before."""

    block: Block
    place: int
    start: int


@dataclass(frozen=True)
class Plan:
    """How a launch of ``attention_decode`` is divided, for one row a sequence.

    parts: blocks that share the tokens of a sequence: KV heads times slices of their queries. splits: of the tokens.
    places: blocks that all multiprocessors hold at a time.
    """

    parts: int
    splits: int
    places: int
    sms: int

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        heads: int,
        kv_heads: int,
        splits: int | None = None,
        rung: str = "4_wide",
        head_dim: int = 256,
        k_bits: int = 16,
        sms: int = V100_PROCESSORS,
    ) -> Plan:
        """What the operation chooses for sequences of these lengths; splits: instead of its own number of them.

        k_bits: of the keys in the pages, 16, 8 or 4.

        Raises ValueError for counts below 1, and for query heads that do not share the KV heads evenly.
        """
        if min(*lengths, heads, kv_heads, 1 if splits is None else splits, sms) < 1 or heads % kv_heads:
            raise ValueError("lengths, heads, KV heads, splits are 1 or more, heads a multiple of KV heads")
        slices = Slices.of(1, heads // kv_heads, most_queries(rung, k_bits))
        parts, resident = kv_heads * slices.count, resident_blocks(rung, head_dim, k_bits, slices.queries)
        pages = tuple(-(-length // PAGE_SIZE) for length in lengths)
        chosen = planned_splits(pages, parts, sms, resident) if splits is None else splits
        return cls(parts, chosen, sms * resident, sms)


def blocks_of(lengths: Sequence[int], parts: int, splits: int) -> Iterator[Block]:
    """The blocks that have tokens, in the order in which the GPU starts them.

    A split is as many whole pages in every sequence; the last splits of a short one stay without any, and such blocks
    end at once.
    """
    span = -(-max(-(-length // PAGE_SIZE) for length in lengths) // splits)
    for sequence, length in enumerate(lengths):
        held = -(-length // PAGE_SIZE)
        for split in range(-(-held // span)):
            first, behind = split * span, min((split + 1) * span, held)
            yield from (Block(sequence, part, split, first, behind) for part in range(parts))


def timeline(lengths: Sequence[int], plan: Plan) -> list[Job]:
    """Modelled: a page takes the same time everywhere, and the next block goes to the place that is free first."""
    free = [(0, place) for place in range(plan.places)]  # a heap
    jobs = []
    for block in blocks_of(lengths, plan.parts, plan.splits):
        start, place = free[0]
        heapreplace(free, (start + block.pages, place))
        jobs.append(Job(block, place, start))
    return jobs


def split_timeline(lengths: Sequence[int], heads: int, kv_heads: int, **settings: Any) -> SvgPicture:
    """Draw a line for each place on a multiprocessor, from left to right the pages that are read there.

    lengths: tokens of the sequences, which have a row each. settings: splits, rung, head_dim, k_bits, sms, as of
    ``Plan.of``, whose errors are raised. The share in the heading is that of the places' time in which they read,
    until the last one has finished.
    """
    plan = Plan.of(lengths, heads, kv_heads, **settings)
    jobs = timeline(lengths, plan)
    ends = Counter[int]()
    for job in jobs:
        ends[job.place] += job.block.pages
    longest, total = max(ends.values()), sum(ends.values())
    what = f"{counted(len(lengths), 'sequence')}, {sum(lengths):,} tokens, {counted(kv_heads, 'KV head')},"
    places = f"{len(ends)} of {plan.places} places ({plan.places // plan.sms} on each of {plan.sms} multiprocessors)"
    used = (
        f"read; the busiest {counted(longest, 'page')}, {percent(total / (longest * plan.places))} of their time used"
    )
    head = f"{what} {counted(plan.splits, 'split')}: {places} {used} (modelled)"
    picture = _svg(jobs, plan, longest, head)
    return SvgPicture(picture, f"Blocks over multiprocessors. {head}.", _text(ends, plan.places, head))


def _text(ends: Counter[int], places: int, head: str) -> str:
    """How many places read how many pages."""
    counts = Counter(ends[place] for place in range(places))
    lines = [f"{counted(pages, 'page'):>12}: {counts[pages]:3} {'#' * counts[pages]}" for pages in sorted(counts)]
    return "\n".join([head, "pages read in a place: how many places", *lines])


def _svg(jobs: Sequence[Job], plan: Plan, longest: int, head: str) -> str:
    scale, row = WIDTH / longest, TALL / plan.places
    foot = TOP + TALL
    first, _, second = head.partition(": ")
    parts = [words(MARGIN, 10, first, anchor="start", bold=True), words(MARGIN, 26, second, anchor="start", size=11)]
    parts.append(box(LEFT, TOP, WIDTH, TALL, EMPTY))
    for job in jobs:
        place = LEFT + job.start * scale, TOP + _line(job.place, plan) * row
        width = max(job.block.pages * scale - 1, scale / 2)  # a gap between blocks
        parts.append(box(*place, width, row, BLOCKS[job.block.sequence % len(BLOCKS)], "none"))
    for sm in range(0, plan.sms, 20):
        parts.append(words(LEFT - 6, TOP + TALL * (sm + 0.5) / plan.sms, f"SM {sm}", anchor="end", size=9))
    parts.append(line(LEFT, foot, LEFT + WIDTH, foot))
    parts += [words(LEFT, foot + 10, "0", size=9), words(LEFT + WIDTH, foot + 10, str(longest), anchor="end", size=9)]
    note = "pages read one after the other; a colour for each sequence"
    parts.append(words(LEFT + WIDTH / 2, foot + 10, note, size=10))
    return document(LEFT + WIDTH + MARGIN, foot + 20 + MARGIN, parts)


def _line(place: int, plan: Plan) -> int:
    """Places of one multiprocessor stand together; blocks go to the first place of each before its second."""
    resident, sm = divmod(place, plan.sms)
    return sm * (plan.places // plan.sms) + resident

"""Which warps read which keys when a row attends: how often each key crosses from memory to the multiprocessors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from labkit.lab.attention_run import AttentionRun
from labkit.lab.drawing import BLOCKS, EMPTY, box, counted, document, words
from labkit.lab.picture import SvgPicture
from labkit.ops.layout import PAGE_SIZE
from labkit.sim.trace import LIMIT, Trace

WIDTH, ROW, LEFT, TOP, MARGIN = 576, 18, 120, 34, 8  # pixels; WIDTH: of all tokens

Warp = tuple[int, int]  # block, warp in it
Readers = dict[Warp, list[int]]


def readers_of(run: AttentionRun) -> Readers:
    """(block, warp) -> the tokens whose keys it loads, of the first sequence of a run with one KV head.

    What a warp loads again, or beyond the last token, is not counted. Raises ValueError for a run without a trace, with
    several KV heads, or with more requests than a trace keeps.
    """
    trace, pages = run.counters, run.operands.pages
    if not isinstance(trace, Trace):
        raise ValueError("run the rung with trace=True")
    if pages.kv_heads != 1:
        raise ValueError(f"{pages.kv_heads} KV heads; the picture is of one")
    if len(trace.accesses) >= LIMIT:
        raise ValueError("more requests than a trace keeps: take fewer tokens")
    keys = pages.k.values
    start, row = keys.data_ptr(), keys.nbytes // (keys.shape[0] * PAGE_SIZE)
    length = int(run.operands.batch.lengths[0])
    first = {
        page: PAGE_SIZE * i for i, page in enumerate(run.operands.batch.table[0].tolist()[: -(-length // PAGE_SIZE)])
    }
    found: defaultdict[Warp, set[int]] = defaultdict(set)
    for access in trace.at(space="global", kind="load"):
        for address in access.addresses:
            if start <= address < start + keys.nbytes:
                page, place = divmod((address - start) // row, PAGE_SIZE)
                token = first[page] + place if page in first else length
                found[access.block, access.warp] |= {token} if token < length else set()
    return {warp: sorted(tokens) for warp, tokens in sorted(found.items()) if tokens}


def times_read(readers: Readers, length: int) -> float:
    """By how many warps each key is loaded, on average."""
    return sum(map(len, readers.values())) / length


def key_readers(run: AttentionRun, title: str = "") -> SvgPicture:
    """Draw a line for each warp, with a mark where it loads a token's key. Errors as of ``readers_of``."""
    readers, length = readers_of(run), int(run.operands.batch.lengths[0])
    blocks = len({block for block, _ in readers})
    head = f"{counted(length, 'key')}, {counted(len(readers), 'warp')} in {counted(blocks, 'block')}: "
    count = times_read(readers, length)
    head += f"each key is loaded by {count:g} of them"
    head = f"{title}: {head}" if title else head
    lines = [f"{_name(warp):>18}  {_text_row(tokens, length)}" for warp, tokens in readers.items()]
    text = "\n".join([head, f"{'':18}  # loads the key, . does not", *lines])
    return SvgPicture(_svg(readers, length, head), f"Which warps load which keys. {head}.", text)


def _name(warp: Warp) -> str:
    return f"block {warp[0]}, warp {warp[1]}"


def _text_row(tokens: Sequence[int], length: int) -> str:
    held = set(tokens)
    return "".join("#" if token in held else "." for token in range(length))


def _svg(readers: Readers, length: int, head: str) -> str:
    scale = WIDTH / length
    parts = [words(MARGIN, 12, head, anchor="start", bold=True)]
    for i, (warp, tokens) in enumerate(readers.items()):
        y = TOP + i * ROW
        parts.append(words(LEFT - 6, y + ROW / 2, _name(warp), anchor="end", size=10))
        parts.append(box(LEFT, y, WIDTH, ROW, EMPTY))
        colour = BLOCKS[warp[0] % len(BLOCKS)]
        parts += [box(LEFT + a * scale, y, (b - a) * scale, ROW, colour) for a, b in _runs(tokens)]
    foot = TOP + len(readers) * ROW + 10
    note = "tokens, from the first to the last; a colour for each block"
    parts += [words(LEFT, foot, "0", size=9), words(LEFT + WIDTH / 2, foot, note, size=10)]
    parts.append(words(LEFT + WIDTH, foot, str(length), anchor="end", size=9))
    return document(LEFT + WIDTH + MARGIN, foot + 10 + MARGIN, parts)


def _runs(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """(first, behind the last) of neighbours."""
    breaks = [i for i, (a, b) in enumerate(pairwise(tokens), 1) if b != a + 1]
    ends = [*breaks, len(tokens)]
    return [(tokens[a], tokens[b - 1] + 1) for a, b in zip([0, *breaks], ends, strict=True)]

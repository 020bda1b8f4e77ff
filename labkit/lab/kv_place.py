"""Where one element of a token's key lies in the pool, in bytes, for each format of pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.lab.drawing import FETCHED, USED, WARNING, box, document, words
from labkit.lab.picture import SvgPicture
from labkit.ops.layout import PAGE_SIZE
from labkit.quant.kv import group_size
from labkit.quant.pack import NIBBLE_INPUT, PER_WORD

FORMATS = {"fp16": 16, "int8": 8, "int4": 4}
WIDEST, HEIGHT, ROW, LEFT, TITLE, MARGIN = 512, 24, 58, 56, 44, 8  # pixels


@dataclass(frozen=True)
class KVPlace:
    """Bytes are counted from the start of the store's tensors.

    page, offset: of the token. row: its first byte in ``values``, of ``row_bytes`` of them. byte: where the element
    begins; nibble: 0 the lower half of that byte, 1 the upper, None for whole bytes. params: first byte of its scale,
    or of its pair (s, b), None for halves; params_bytes: all that the token has of them in this head.
    """

    page: int
    offset: int
    row: int
    row_bytes: int
    byte: int
    nibble: int | None
    params: int | None
    params_bytes: int


def kv_place(
    position: int, head: int, element: int, table: Sequence[int], kv_heads: int, head_dim: int, bits: int
) -> KVPlace:
    """Of one element of the token at ``position``. In a page the 64 tokens of a head lie side by side, head after head.

    Raises ValueError for an element that the pages do not have.
    """
    if not (0 <= position < PAGE_SIZE * len(table) and 0 <= head < kv_heads and 0 <= element < head_dim):
        raise ValueError(f"no token {position}, KV head {head} or element {element} in {len(table)} pages")
    number, offset = divmod(position, PAGE_SIZE)
    row = (table[number] * kv_heads + head) * PAGE_SIZE + offset  # counted in rows of head_dim elements
    row_bytes = head_dim * bits // 8
    if bits == 16:
        return KVPlace(table[number], offset, row * row_bytes, row_bytes, row * row_bytes + 2 * element, None, None, 0)
    if bits == 8:
        return KVPlace(table[number], offset, row * row_bytes, row_bytes, row * row_bytes + element, None, 2 * row, 2)
    word, inside = divmod(element, PER_WORD)
    byte, nibble = divmod(NIBBLE_INPUT.index(inside), 2)
    size = group_size(head_dim)
    groups = head_dim // size
    pair = 4 * (row * groups + element // size)
    first = row * row_bytes
    return KVPlace(table[number], offset, first, row_bytes, first + 4 * word + byte, nibble, pair, 4 * groups)


def kv_places(
    position: int, head: int, element: int, table: Sequence[int], kv_heads: int = 2, head_dim: int = 256
) -> SvgPicture:
    """Draw the row of a token's key in each format to one scale, with the element marked. Raises ValueError."""
    places = {
        name: kv_place(position, head, element, table, kv_heads, head_dim, bits) for name, bits in FORMATS.items()
    }
    first = places["fp16"]
    facts = f"token {position} is place {first.offset} of page {first.page}"
    about = f"KV head {head} of {kv_heads}, element {element} of {head_dim}"
    rows = [f"{name}: {_fact(place)}" for name, place in places.items()]
    alt = f"Where an element of a key lies. {facts[0].upper()}{facts[1:]}; {about}. {'; '.join(rows)}."
    return SvgPicture(_svg(places, facts, about, element / head_dim), alt, "\n".join([f"{facts}; {about}", *rows]))


def _fact(place: KVPlace) -> str:
    half = {None: "", 0: ", lower four bits", 1: ", upper four bits"}[place.nibble]
    text = f"row of {place.row_bytes} bytes from {place.row:,}, element at byte {place.byte:,}{half}"
    if place.params is None:
        return text
    return f"{text}; {place.params_bytes} bytes of scales, its own at byte {place.params:,}"


def _svg(places: dict[str, KVPlace], facts: str, about: str, share: float) -> str:
    scale = WIDEST / max(place.row_bytes for place in places.values())
    parts = [
        words(MARGIN, 10, facts, anchor="start", bold=True),
        words(MARGIN, 28, about, anchor="start", bold=True),
    ]
    for i, (name, place) in enumerate(places.items()):
        y, width = TITLE + ROW * i, place.row_bytes * scale
        parts.append(words(LEFT - 8, y + HEIGHT / 2, name, anchor="end", bold=True))
        parts.append(box(LEFT, y, width, HEIGHT, USED, "#666"))
        mark = max(3.0, 2 * scale)
        parts.append(box(min(LEFT + share * width, LEFT + width - mark), y, mark, HEIGHT, WARNING, "#666"))
        if place.params_bytes:
            parts.append(box(LEFT + WIDEST + 24, y, max(4.0, place.params_bytes * scale), HEIGHT, FETCHED, "#666"))
        parts.append(words(LEFT, y + HEIGHT + 12, _fact(place), anchor="start", size=10))
    end = TITLE + ROW * len(places)
    parts.append(words(LEFT + WIDEST + 24, TITLE - 10, "scales", anchor="start", size=10))
    return document(LEFT + WIDEST + 90, end + MARGIN, parts)

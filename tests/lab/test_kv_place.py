"""The bytes that the picture names are those where PageStore puts an element."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import boxes, root_of

from labkit.lab.drawing import WARNING
from labkit.lab.kv_place import FORMATS, kv_place, kv_places
from labkit.ops.kv_slots import KVSlots
from labkit.ops.paged_kv import PageStore

TABLE, KV_HEADS = [3, 1], 3


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)


@pytest.mark.parametrize("bits", FORMATS.values())
@pytest.mark.parametrize("dim", [64, 256])
def test_places_are_those_of_the_store(bits: int, dim: int, seed: int) -> None:
    """One element is changed: the bytes that differ are the element's, or its scale's."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(5):
        position, head, element = (int(torch.randint(n, (1,), generator=draw)) for n in (128, KV_HEADS, dim))
        place = kv_place(position, head, element, TABLE, KV_HEADS, dim, bits)
        stores = [_store(position, head, element, value, dim, bits) for value in (0.0, 15.0)]
        assert (place.page, place.offset) == (TABLE[position // 64], position % 64)
        changed = (bytes_of(stores[0].values) != bytes_of(stores[1].values)).nonzero().flatten().tolist()
        assert changed and place.byte in (changed[0], changed[0] - 1)
        assert all(place.row <= byte < place.row + place.row_bytes for byte in changed)
        if bits == 4:
            value = int(bytes_of(stores[1].values)[place.byte])
            assert value == 15 << 4 * (place.nibble or 0)
        if place.params is not None:
            params = [bytes_of(store.params) for store in stores if store.params is not None]
            differ = (params[0] != params[1]).nonzero().flatten().tolist()
            assert differ and all(place.params <= byte < place.params + 4 for byte in differ)


def _store(position: int, head: int, element: int, value: float, dim: int, bits: int) -> PageStore:
    """A token of zeros but for one element; page 0 to 4, all of the token's own page written."""
    store = PageStore.zeros(5, KV_HEADS, dim, bits, torch.float16, "cpu")
    page = torch.full((64,), TABLE[position // 64])
    x = torch.zeros(64, KV_HEADS, dim)
    x[position % 64, head, element] = value
    store.write(x, KVSlots.at(page, torch.arange(64)))
    return store


def test_the_row_and_its_scales_take_what_the_format_says() -> None:
    place = kv_place(70, 1, 200, TABLE, 2, 256, 4)
    assert (place.row_bytes, place.params_bytes) == (128, 16)
    assert kv_place(70, 1, 200, TABLE, 2, 256, 8).params_bytes == 2
    assert kv_place(70, 1, 200, TABLE, 2, 256, 16).params is None


def test_the_picture_marks_the_element_in_every_format() -> None:
    picture = kv_places(70, 1, 255, TABLE)
    root = root_of(picture)
    assert len(boxes(root, WARNING)) == 3
    assert "Token 70 is place 6 of page 1" in picture.alt
    for name, bits in FORMATS.items():
        place = kv_place(70, 1, 255, TABLE, 2, 256, bits)
        [line] = [line for line in picture.text.splitlines() if line.startswith(name)]
        assert f"row of {place.row_bytes} bytes from {place.row:,}, element at byte {place.byte:,}" in line


@pytest.mark.parametrize("where", [(128, 0, 0), (0, 2, 0), (0, 0, 256), (-1, 0, 0)])
def test_what_is_no_place_is_refused(where: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no token"):
        kv_places(*where, TABLE)

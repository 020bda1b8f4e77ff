"""The page and slot allocators: each index has one holder, and every mistake is noticed."""

from __future__ import annotations

import random

import pytest

from labkit.engine.pages import PAGE_SIZE, PageAccountingError, PageAllocator, SlotAllocator, pages_for


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages
    assert PAGE_SIZE == 64


def test_every_page_is_given_out_once() -> None:
    pool = PageAllocator(5)
    pages = pool.allocate(2) + pool.allocate(3)
    assert sorted(pages) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    pool.free(pages[1:4])
    assert pool.num_free == 3
    assert sorted(pool.allocate(3)) == sorted(pages[1:4])


def test_allocating_nothing_gives_nothing() -> None:
    assert PageAllocator(0).allocate(0) == []


@pytest.mark.parametrize("n", [4, -1])
def test_asking_for_more_than_is_free_raises_and_takes_none(n: int) -> None:
    pool = PageAllocator(3)
    with pytest.raises(PageAccountingError, match="3 free"):
        pool.allocate(n)
    assert pool.num_free == 3


@pytest.mark.parametrize("wrong", [[0, 1, 0], [2], [0, 2], [7], [-1]])
def test_double_or_foreign_frees_raise_and_free_none(wrong: list[int]) -> None:
    pool = PageAllocator(4)
    assert pool.allocate(2) == [0, 1]
    with pytest.raises(PageAccountingError):
        pool.free(wrong)
    assert pool.num_free == 2
    pool.free([0, 1])
    with pytest.raises(PageAccountingError):
        pool.free([0])


def test_slots_name_themselves_in_errors() -> None:
    with pytest.raises(PageAccountingError, match="2 slots"):
        SlotAllocator(1).allocate(2)


def test_balances_sees_missing_foreign_and_doubled_holdings() -> None:
    pool = PageAllocator(4)
    held = pool.allocate(3)
    assert pool.balances(held)
    assert not pool.balances(held[:2])
    assert not pool.balances([*held, held[0]])
    assert not pool.balances([*held, 3])


@pytest.mark.parametrize("seed", range(5))
def test_random_use_never_gives_a_page_to_two(seed: int) -> None:
    rng, pool, holders = random.Random(seed), PageAllocator(20), list[list[int]]()
    for _ in range(500):
        if holders and rng.random() < 0.5:
            pool.free(holders.pop(rng.randrange(len(holders))))
        else:
            holders.append(pool.allocate(rng.randint(0, pool.num_free)))
        assert pool.balances([page for pages in holders for page in pages])

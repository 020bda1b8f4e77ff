"""Sparse prefill: which pages are kept, and attention over them; every result is looked at from outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.paged import FORMATS, Paged, exact_attention, random_paged
from torch import Tensor

from labkit.device import use_executor
from labkit.errors import ConfigError, KernelArgumentError
from labkit.ops.attention_sparse_torch import attend_kept
from labkit.ops.attention_torch import attend
from labkit.ops.kept_pages import KeptPages
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import KVPages
from labkit.ops.sparse_keys import farthest_first, sample_keys
from labkit.ops.sparse_prefill import anchors, applies, choose_pages
from labkit.ops.sparse_settings import SparseSettings
from labkit.quant.kv import KVFormat

SPARSE = SparseSettings(mass=0.5, sink=1, recent=1, threshold=256, needle=1)


def drawn(lengths: tuple[int, ...], rows: tuple[int, ...], name: str = "fp16", heads: int = 4) -> tuple[Paged, Tensor]:
    """Pages and queries of two KV heads, D = 64; the queries as they meet the keys."""
    paged = random_paged(lengths, 2, 64, KVFormat.named(name, torch.float16))
    q = torch.randn(sum(rows), heads, 64)
    return paged, paged.pages.rotated(q).half()


def sets(kept: KeptPages) -> list[list[set[int]]]:
    """The kept places of every tile and head; what lies behind the count is not looked at."""
    return [
        [set(row[:n].tolist()) for row, n in zip(index, count.tolist(), strict=True)]
        for index, count in zip(kept.index, kept.count, strict=True)
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_lists_fit_the_batch_and_hold_what_is_always_kept(name: str, seed: int) -> None:
    rows, lengths = (70, 64, 5, 130), (700, 300, 100, 450)
    paged, q = drawn(lengths, rows, name)
    batch = paged.batch(rows)
    kept = choose_pages(q, paged.pages, batch, SPARSE)
    kept.check("test", batch, 4)
    chosen = sets(kept)
    assert chosen[0][0] >= {0, 8, 9, 10}  # rows 630 .. 693: sink, recent, own
    assert all(places == {0, 1} for places in chosen[3])  # 100 tokens: below the threshold, dense
    assert chosen[4][1] >= {0, 4, 5} and chosen[6][1] >= {0, 6, 7}  # rows 320 .. 383, 448 .. 449
    assert int(kept.count[0].min()) < 11, "nothing was left out"


def test_everything_is_kept_below_the_threshold_and_with_all_mass(seed: int) -> None:
    paged, q = drawn((300, 200), (64, 70))
    batch = paged.batch((64, 70))
    everything = sets(KeptPages.all_of(batch, 4))
    for settings in (SparseSettings(0.3, threshold=301), SparseSettings(1.0, threshold=1)):
        assert sets(choose_pages(q, paged.pages, batch, settings)) == everything
    assert sets(choose_pages(q, paged.pages, batch, SparseSettings(0.01, 0, 0, 300, needle=1)))[0] != everything[0]


@pytest.mark.parametrize("rule", [{"mass": 0.6, "needle": 1.0}, {"mass": 0.01, "needle": 0.6}], ids=["mass", "needle"])
def test_the_sampled_rows_decide_by_their_own_attention(rule: dict[str, float], seed: int) -> None:
    """Eight rows and less are all sampled: the rule in fp64, over both estimates, must give the same pages."""
    paged, q = drawn((650,), (8,))
    q = (4 * q).half()  # so that some pages hold much more than others
    settings = SparseSettings(**rule, sink=1, recent=2, threshold=1)  # type: ignore[arg-type]
    kept = sets(choose_pages(q, paged.pages, paged.batch((8,)), settings))[0]
    k = paged.pages.gather(torch.tensor(paged.tables[0]))[0][:, : 10 * PAGE_SIZE].double().unflatten(1, (10, PAGE_SIZE))
    for head in range(4):
        most = torch.maximum(_of_rows(q[:, head].double(), k[head // 2]), _of_keys(q[:, head].double(), k[head // 2]))
        least, largest = (_by_rule(most, {0, 8, 9}, settings, slack) for slack in (-1e-4, 1e-4))
        assert least | {10} <= kept[head] <= largest | {10}, "not the pages of the most attention"
        assert len(largest - least) <= 1, "more than a tie at the cut"
    assert any(len(places) > 4 for places in kept) and any(len(places) < 11 for places in kept), "nothing to choose"


def _of_rows(q: Tensor, k: Tensor) -> Tensor:
    """The most that any row of q [8, D] pays to each page of k [P, 64, D]."""
    scores = torch.einsum("rd,pkd->rpk", q, k) / 8
    return (scores.logsumexp(-1) - scores.flatten(1).logsumexp(-1)[:, None]).exp().amax(0)


def _of_keys(q: Tensor, k: Tensor) -> Tensor:
    """The same, from eight keys of each page that count for those nearest to them."""
    samples = torch.stack([page[farthest_first(page, 8)] for page in k])
    nearest = torch.cdist(k, samples, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)
    sizes = torch.stack([places.bincount(minlength=8) for places in nearest])
    scores = torch.einsum("rd,pkd->rpk", q, samples) / 8 + sizes.double().log()
    return (scores.logsumexp(-1) - scores.flatten(1).logsumexp(-1)[:, None]).exp().amax(0)


def _by_rule(most: Tensor, always: set[int], settings: SparseSettings, slack: float) -> set[int]:
    """Kept pages, were both limits easier to reach by ``slack`` (harder: below 0)."""
    weight, found = most / most.sum(), set(always)
    held = sum(float(weight[place]) for place in always)
    for place in weight.argsort(descending=True).tolist():
        if place not in found and (held < settings.mass + slack or most[place] >= settings.needle - slack):
            found.add(place)
            held += float(weight[place])
    return found


@pytest.mark.parametrize("asks", ["row", "key"])
def test_a_lone_needle_is_kept_wherever_it_lies(asks: str, seed: int) -> None:
    """One row of 64 that pays 0.4 of its attention to one key; the row turned to the key, or the key to the row."""
    length = 64 * 33
    for depth in (1, 8, 17, 30):
        pages = KVPages.zeros(40, 1, 64, KVFormat.named("fp16", torch.float16))
        topics = torch.randn(40, 1, 1, 64)  # keys of a page have much in common
        pages.k.values.copy_(0.8 * topics + 0.6 * torch.randn(40, 1, 64, 64))
        q, row, key = torch.randn(64, 1, 64), int(torch.randint(64, ())), int(torch.randint(64, ()))
        target = pages.k.values[depth + 3, 0]
        kept_before = target[key].clone()
        others = (q[row, 0] @ pages.k.values[3:35, 0].flatten(0, 1).float().T / 8).logsumexp(-1)
        wanted = float(others) + 0.1
        if asks == "row":
            unit = kept_before.float() / kept_before.float().norm()
            q[row, 0] += unit * (8 * wanted / float(kept_before.float().norm()) - float(q[row, 0] @ unit))
        else:
            unit = q[row, 0] / q[row, 0].norm()
            target[key] = (unit * (8 * wanted / float(q[row, 0].norm()))).half()
        paged = Paged(pages, [list(range(3, 36))], (length,))
        settings = SparseSettings(mass=0.2, sink=0, recent=0, threshold=1)
        assert depth in sets(choose_pages(q.half(), pages, paged.batch((64,)), settings))[0][0], (asks, depth)


def test_cutting_a_prompt_at_multiples_of_64_keeps_the_same_pages(seed: int) -> None:
    paged, q = drawn((640,), (256,))
    whole = sets(choose_pages(q, paged.pages, paged.batch((256,)), SPARSE))
    parts = []
    for first, behind in ((0, 64), (64, 192), (192, 256)):
        shorter = Paged(paged.pages, paged.tables, (384 + behind,))
        parts += sets(choose_pages(q[first:behind], paged.pages, shorter.batch((behind - first,)), SPARSE))
    assert whole == parts


def test_sequences_of_a_batch_do_not_influence_each_other(seed: int) -> None:
    paged, q = drawn((500, 700), (64, 100))
    both = sets(choose_pages(q, paged.pages, paged.batch((64, 100)), SPARSE))
    alone = []
    for s, rows in enumerate((q[:64], q[64:])):
        one = Paged(paged.pages, [paged.tables[s]], (paged.lengths[s],))
        alone += sets(choose_pages(rows, paged.pages, one.batch((len(rows),)), SPARSE))
    assert both == alone


def test_sequences_that_leave_nothing_out_stand_beside_those_that_do(seed: int) -> None:
    paged, q = drawn((500, 700, 100), (64, 100, 5))
    batch = paged.batch((64, 100, 5))
    everything, chosen = sets(KeptPages.all_of(batch, 4)), sets(choose_pages(q, paged.pages, batch, SPARSE))
    assert chosen[0] != everything[0] and chosen[1] != everything[1]
    mixed = sets(choose_pages(q, paged.pages, batch, SPARSE, which=[False, True, True]))
    assert mixed == [everything[0], *chosen[1:]]
    assert not applies(batch, SPARSE, [False, False, True])  # the third is below the threshold
    assert sets(choose_pages(q, paged.pages, batch, SPARSE, which=[False, False, True])) == everything


def test_most_bounds_the_anchors_and_sink_and_recent_come_first(seed: int) -> None:
    paged, q = drawn((1000,), (64,))
    settings = SparseSettings(mass=0.99, sink=2, recent=3, threshold=1, most=7)
    for places in sets(choose_pages(q, paged.pages, paged.batch((64,)), settings))[0]:
        assert len(places - {14, 15}) == 7 and places >= {0, 1, 11, 12, 13, 14, 15}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("executor", ["sim"])
def test_kernels_choose_what_torch_chooses(name: str, executor: str, seed: int) -> None:
    """Up to near ties: pages may differ whose shares differ by rounding, so hardly any."""
    paged, q = drawn((400, 330), (70, 64), name)
    batch = paged.batch((70, 64))
    ours = sets(choose_pages(q, paged.pages, batch, SPARSE))
    with use_executor(executor):
        theirs = sets(choose_pages(q, paged.pages, batch, SPARSE))
    differing = sum(len(a ^ b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))
    assert differing <= 2, f"{differing} pages differ"


@pytest.mark.parametrize("name", FORMATS)
def test_attention_over_kept_pages(name: str, seed: int) -> None:
    """Against fp64 over a cache from which the other pages were taken out, position by position."""
    rows, lengths = (70, 5, 64), (400, 260, 64)
    paged, q = drawn(lengths, rows, name)
    batch, gate = paged.batch(rows), torch.randn(139, 4, 64).half()
    kept, lse = choose_pages(q, paged.pages, batch, SPARSE), torch.empty(139, 4)
    out = attend_kept(q, paged.pages, batch, kept, 0.125, gate, lse)
    wanted, sums = exact_kept(q, paged, rows, kept, 0.125)
    relative_error(out.flatten(1), (wanted * gate.double().sigmoid()).flatten(1), QUANTIZED)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-4, atol=1e-4)


def exact_kept(q: Tensor, paged: Paged, rows: tuple[int, ...], kept: KeptPages, scale: float) -> tuple[Tensor, Tensor]:
    chosen, outputs, sums, first, tile = sets(kept), [], [], 0, 0
    for s, count in enumerate(rows):
        k, v = (x.double() for x in paged.pages.gather(torch.tensor(paged.tables[s])))
        for r in range(count):
            position = paged.lengths[s] - count + r
            for head in range(q.shape[1]):
                seen = [
                    t for page in sorted(chosen[tile + r // 64][head]) for t in range(page * 64, page * 64 + 64)
                    if t <= position
                ]  # fmt: skip
                scores = k[head // 2, seen] @ q[first + r, head].double() * scale
                outputs.append(scores.softmax(-1) @ v[head // 2, seen])
                sums.append(scores.logsumexp(-1))
        first, tile = first + count, tile - (-count // 64)
    return torch.stack(outputs).unflatten(0, (first, -1)), torch.stack(sums).unflatten(0, (first, -1))


def test_all_pages_kept_is_dense_attention_bit_for_bit(seed: int) -> None:
    rows = (70, 64)
    paged, q = drawn((300, 200), rows)
    batch = paged.batch(rows)
    out = attend_kept(q, paged.pages, batch, KeptPages.all_of(batch, 4), 0.125)
    assert torch.equal(out, attend(q, paged.pages, batch, 0.125))
    relative_error(out.flatten(1), exact_attention(q, paged, rows, 0.125)[0].flatten(1), QUANTIZED)


def test_farthest_first_takes_the_odd_ones_out(seed: int) -> None:
    x = torch.randn(3, 1, 16) + 0.01 * torch.randn(3, 64, 16)
    odd = torch.stack([torch.randperm(64)[:4] for _ in range(3)])
    for i in range(3):
        x[i, odd[i]] += 3 * torch.randn(4, 16)
    for i, chosen in enumerate(farthest_first(x, 5).tolist()):
        assert set(chosen) > set(odd[i].tolist())


@pytest.mark.parametrize("name", FORMATS)
def test_key_samples_stand_for_all_keys(name: str, seed: int) -> None:
    paged, _ = drawn((64 * 9, 70), (1, 1), name)
    table = paged.batch((1, 1)).table
    samples = sample_keys(paged.pages.k, table, [9, 1])
    counts = samples.weights.exp().unflatten(-1, (8, 8)).sum(-1)  # [S * P', kv_heads, segments]
    assert counts.shape == (4, 2, 8)
    expected = [[64] * 8, [64] + [0] * 7, [64] + [0] * 7, [0] * 8]
    assert counts[:, 0].round().tolist() == counts[:, 1].round().tolist() == expected
    page = paged.pages.k.gather(table[0, 8:9])[1]
    distances = torch.cdist(samples.keys.values[1, 1, :8], page, compute_mode="donot_use_mm_for_euclid_dist")
    assert float(distances.amin(-1).max()) < 1e-2, "a sample is no key of its page"
    nearest = distances.argmin(0).bincount(minlength=8)
    assert samples.weights[1, 1, :8].exp().round().tolist() == nearest.tolist(), "keys count for another sample"


def test_settings_out_of_range_are_refused() -> None:
    for wrong in (
        {"mass": 0}, {"mass": 1.01}, {"mass": "0.9"}, {"mass": True}, {"mass": float("nan")}, {"needle": 0},
        {"sink": -1}, {"recent": 1.5}, {"recent": -2}, {"threshold": 0}, {"most": 0}, {"most": True},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"sparse_{next(iter(wrong))}"):
            SparseSettings(**wrong)  # type: ignore[arg-type]


def test_wrong_queries_are_refused(seed: int) -> None:
    paged, q = drawn((300,), (64,))
    with pytest.raises(KernelArgumentError, match="sparse_prefill: q is"):
        choose_pages(q[:3], paged.pages, paged.batch((64,)), SPARSE)


def test_settings_that_are_none_and_scales_that_are_no_numbers_are_refused(seed: int) -> None:
    paged, q = drawn((300, 300), (64, 64))
    wrong: list[dict[str, Any]] = [
        {"which": []}, {"which": [True]}, {"which": [True] * 3}, {"which": True},
        {"scale": float("nan")}, {"scale": float("inf")}, {"scale": "0.1"}, {"scale": torch.ones(2)},
        {"settings": None}, {"settings": 0.9},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(KernelArgumentError, match=f"sparse_prefill: {next(iter(given))}"):
            choose_pages(q, paged.pages, paged.batch((64, 64)), **{"settings": SPARSE, **given})


def test_anchors_by_hand() -> None:
    scores = torch.tensor([[[0.05, 0.30, 0.02, 0.12, 0.09, 0.01, 0.0, 0.0]]])
    always = torch.tensor([[[True, False, False, False, False, True, True, True]]])
    asked = torch.tensor([[[True, True, True, True, True, True, False, False]]])

    def kept(mass: float, most: int | None = None) -> list[int]:
        found = anchors(scores, always, asked, SparseSettings(mass, threshold=1, most=most))
        return found[0, 0].nonzero()[:, 0].tolist()

    assert kept(0.01) == [0, 1, 3, 5, 6, 7]  # 1 and 3 are needles
    assert kept(0.85) == [0, 1, 3, 4, 5, 6, 7]
    assert kept(0.999) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert kept(0.999, most=3) == [0, 1, 5, 6, 7]

"""The recording says which lane of which warp asked for which address, and whom each lane listened to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from labkit.sim import trace as trace_module
from labkit.sim.program import Block, Instruction, Kernel, Module, Site
from labkit.sim.trace import Trace, shuffle_sources

LANES = np.arange(32)


@dataclass
class Selected:
    """Threads of a launch as the hooks see them."""

    blocks: int
    block_threads: int
    chosen: np.ndarray | None = None

    @property
    def whole(self) -> bool:
        return self.chosen is None

    @property
    def flat(self) -> np.ndarray:
        everybody = np.arange(self.blocks * self.block_threads).reshape(self.blocks, self.block_threads)
        return everybody if self.chosen is None else self.chosen[None]

    @property
    def count(self) -> int:
        return self.flat.size


def shuffle(mode: str, distance: str, clamp: str, line: int = 3) -> Instruction:
    text = f"shfl.sync.{mode}.b32 %r2|%p1, %r1, {distance}, {clamp}, -1;"
    site = Site(0, 10, "k.cu", line, text, "shuffle")
    return Instruction("shfl", ("sync", mode, "b32"), ("%r2|%p1", "%r1", distance, clamp, "-1"), None, False, site)


def kernel(instructions: tuple[Instruction, ...] = ()) -> Kernel:
    sites = [Site(i, 10 + i, "k.cu", 3 + i, "ld.global.f32 %f1, [%rd1];", "load.global") for i in range(3)]
    block = Block(0, list(instructions), (), (), (-1,))
    return Kernel("k", [], {}, {}, 0, {}, 0, sites, [block], Module("", "sm_70", {}, {}))


def test_all_threads_with_an_address_each() -> None:
    trace = Trace(kernel())
    array = torch.zeros(128)
    addresses = array.data_ptr() + 4 * np.arange(128).reshape(2, 64)
    trace.global_access(Selected(2, 64), "load", addresses, 4, 0)
    assert [(a.block, a.warp) for a in trace.accesses] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    last = trace.accesses[-1]
    assert last.lanes == tuple(range(32)) and last.threads == list(range(32, 64))
    assert last.offsets(array) == list(range(4 * 96, 4 * 128, 4))
    assert trace.global_load.sectors == 16  # it still counts


def test_one_address_for_all_is_an_address_for_each() -> None:
    trace = Trace(kernel())
    trace.shared_access(Selected(2, 32), "load", np.array([[64]]), 4, 0)
    assert [a.addresses for a in trace.accesses] == [(64,) * 32] * 2


def test_some_threads(seed: int) -> None:
    draw = np.random.default_rng(seed)
    chosen = np.sort(draw.choice(3 * 64, 50, replace=False))
    addresses = draw.integers(0, 1000, 50) * 4
    trace = Trace(kernel())
    trace.shared_access(Selected(3, 64, chosen), "store", addresses[None], 4, 0)
    found = {
        a.block * 64 + thread: place
        for a in trace.accesses
        for thread, place in zip(a.threads, a.addresses, strict=True)
    }
    assert found == dict(zip(chosen.tolist(), addresses.tolist(), strict=True))
    assert len(trace.accesses) == len(set(chosen // 32))


def test_lines_spaces_kinds_and_warps_are_chosen() -> None:
    trace = Trace(kernel(), lines=[3, 4])
    for site, space in ((0, "global"), (1, "shared"), (2, "global")):
        for kind in ("load", "store"):
            hook = trace.global_access if space == "global" else trace.shared_access
            hook(Selected(1, 64), kind, 4 * np.arange(64)[None], 4, site)
    assert {a.site.line for a in trace.accesses} == {3, 4}
    assert [(a.kind, a.warp) for a in trace.at(3)] == [("load", 0), ("load", 1), ("store", 0), ("store", 1)]
    assert [a.site.line for a in trace.at(space="shared", kind="store", warp=1)] == [4]


def test_a_long_run_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "LIMIT", 5)
    trace = Trace(kernel())
    for _ in range(9):
        trace.global_access(Selected(1, 32), "load", 4 * LANES[None], 4, 0)
    assert len(trace.accesses) == 5 and trace.global_load.requests == 9


@pytest.mark.parametrize(
    ("mode", "distance", "clamp", "sources"),
    [
        ("bfly", "16", "31", LANES ^ 16),
        ("bfly", "0x1", "0x1f", LANES ^ 1),
        ("down", "8", "31", np.where(LANES + 8 < 32, LANES + 8, LANES)),
        ("up", "4", "0", np.where(LANES >= 4, LANES - 4, LANES)),
        ("idx", "5", "31", np.full(32, 5)),
        ("idx", "1", "0x181f", LANES // 8 * 8 + 1),  # __shfl_sync(mask, v, 1, 8)
        ("down", "2", "0x181f", np.where(LANES % 8 + 2 < 8, LANES + 2, LANES)),
        ("up", "1", "0x1800", np.where(LANES % 8 >= 1, LANES - 1, LANES)),
    ],
)
def test_sources_of_shuffles(mode: str, distance: str, clamp: str, sources: np.ndarray) -> None:
    assert shuffle_sources(shuffle(mode, distance, clamp)) == tuple(sources.tolist())


def test_shuffles_are_kept_for_each_warp() -> None:
    block = kernel((shuffle("bfly", "2", "31"), shuffle("idx", "%r7", "31"))).blocks[0]
    trace = Trace(kernel((shuffle("bfly", "2", "31"),)))
    trace.block(block, Selected(2, 32))
    assert [(s.block, s.warp, s.sources) for s in trace.shuffles] == [(b, 0, tuple(LANES ^ 2)) for b in (0, 1)]


def test_shuffles_of_other_lines_are_not_kept() -> None:
    program = kernel((shuffle("bfly", "2", "31", line=9),))
    trace = Trace(program, lines=[3])
    trace.block(program.blocks[0], Selected(1, 32))
    assert trace.shuffles == []

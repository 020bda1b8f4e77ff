"""The launch picture says who wrote what, who was idle, and what went wrong."""

from __future__ import annotations

import random

import torch
from helpers.drawings import SVG, boxes, root_of, texts

from labkit.lab.drawing import EMPTY, WARNING
from labkit.lab.thread_grid import OUTSIDE, thread_grid, writes_to
from labkit.sim import run
from labkit.sim.trace import Trace


def test_guarded_launch() -> None:
    picture = thread_grid(3, 8, 20, [(i, i) for i in range(20)])
    assert picture.text.splitlines() == [
        "3 blocks of 8 threads: 20 of 20 elements written; 4 threads idle",
        "block 0: 0.0->0 0.1->1 0.2->2 0.3->3 0.4->4 0.5->5 0.6->6 0.7->7",
        "block 1: 1.0->8 1.1->9 1.2->10 1.3->11 1.4->12 1.5->13 1.6->14 1.7->15",
        "block 2: 2.0->16 2.1->17 2.2->18 2.3->19",
    ]
    root = root_of(picture)
    assert len(boxes(root, EMPTY)) == 4 and not boxes(root, WARNING)
    assert {"block 0", "block 1", "block 2", "19"} <= set(texts(root))


def test_writes_outside_are_drawn_named_and_counted() -> None:
    picture = thread_grid(2, 4, 6, [(i, i - 1) for i in range(7)])
    assert "1 write outside the array, at -1" in picture.alt
    assert len(boxes(root_of(picture), WARNING)) == 1
    picture = thread_grid(2, 4, 6, [(i, i) for i in range(8)])
    assert "2 writes outside the array, at 6, 7" in picture.alt
    assert texts(root_of(picture)).count("!") == 2


def test_writes_far_away_are_named_without_a_picture_a_mile_wide() -> None:
    picture = thread_grid(1, 4, 4, [(i, 1000 * i) for i in range(4)])
    assert "at 1000, 2000, 3000" in picture.text
    assert float(root_of(picture).attrib["width"]) < 24 * (4 + OUTSIDE) + 200


def test_elements_written_twice() -> None:
    picture = thread_grid(1, 4, 4, [(0, 0), (1, 0), (2, 0), (3, 3)])
    assert "2 of 4 elements written; 0 threads idle; 1 written more than once" in picture.alt
    assert "×3" in texts(root_of(picture))


def test_each_write_has_its_line(seed: int) -> None:
    draw = random.Random(seed)
    pairs = {(draw.randrange(12), draw.randrange(20)) for _ in range(15)}
    root = root_of(thread_grid(3, 4, 20, pairs))
    assert len(list(root.iter(f"{SVG}line"))) == len(pairs)
    assert f"{len({e for _, e in pairs})} of 20 elements written" in thread_grid(3, 4, 20, pairs).text


def test_writes_of_a_run() -> None:
    source = """
    struct Pair { float a, b; };
    extern "C" __global__ void pairs(float* y, Pair* z) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        y[11 - i] = 1.0f;
        if (i % 2) ((float2*)z)[i] = make_float2(0.0f, 0.0f);
    }
    """
    y, z = torch.zeros(12), torch.zeros(24)
    trace = run(source, name="pairs", grid=3, block=4, args=[y, z], trace=True).counters
    assert isinstance(trace, Trace)
    assert sorted(writes_to(trace, y, threads=4)) == [(i, 11 - i) for i in range(12)]
    assert sorted(writes_to(trace, z, threads=4)) == [(i, 2 * i + k) for i in range(1, 12, 2) for k in (0, 1)]


def test_a_launch_that_writes_nothing() -> None:
    assert "0 of 1 element written; 2 threads idle" in thread_grid(1, 2, 1, []).text

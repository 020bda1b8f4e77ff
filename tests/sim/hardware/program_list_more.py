"""More programs: hashing, transforms, graphs, text, attention, cooperative groups, structures."""

from __future__ import annotations

import numpy as np
from sim.hardware.program_answers_more import (
    attend,
    box_filter,
    count_words,
    digests,
    distances,
    group_answers,
    levels,
    matrix_products,
    merged,
    tree_walk,
)
from sim.hardware.programs import Buffers, Launch, Program, floats, integers

I32, F32 = np.int32, np.float32
NODE = np.dtype([("weight", "f8"), ("child", "i4", (2,)), ("name", "u1", (3,))], align=True)


def _sha256(random: np.random.RandomState) -> Buffers:
    lengths = integers(random, 0, 56, 40)
    messages = random.randint(0, 256, (40, 64)).astype(np.uint8)
    return {"messages": messages, "lengths": lengths, "digests": np.zeros((40, 8), np.uint32)}


def _fft(random: np.random.RandomState) -> Buffers:
    return {"in": floats(random, 3, 256, 2), "out": np.zeros((3, 256, 2), np.float32)}


def _transformed(buffers: Buffers) -> Buffers:
    out = np.fft.fft(buffers["in"][..., 0] + 1j * buffers["in"][..., 1])
    return {"out": np.stack([out.real, out.imag], axis=-1)}


def _graph(random: np.random.RandomState) -> Buffers:
    starts = np.concatenate([[0], np.cumsum(random.randint(1, 5, 200))]).astype(np.int32)
    frontier = np.zeros((4, 200), np.int32)
    distance = np.full(200, -1, np.int32)
    frontier[0, 0], distance[0] = 17, 0
    distance[17], distance[0] = 0, -1
    sizes = np.array([1, 0, 0, 0], np.int32)
    graph: Buffers = {"starts": starts, "neighbours": integers(random, 0, 200, int(starts[-1])), "distance": distance}
    for level in range(4):
        graph |= {f"frontier{level}": frontier[level].copy(), f"size{level}": sizes[level : level + 1].copy()}
    return graph


def _bfs_level(level: int) -> Launch:
    arrays = (f"frontier{level}", f"size{level}", f"frontier{level + 1}", f"size{level + 1}")
    return Launch("bfs_level", (2, 1, 1), (64, 1, 1), ("starts", "neighbours", "distance", *arrays, I32(level + 1)))


def _words(random: np.random.RandomState) -> Buffers:
    return {
        "keys": random.randint(0, 40, 300).astype(np.uint32) * np.uint32(7919),
        "table": np.full(101, 2**64 - 1, np.uint64),
        "largest": np.zeros(1, np.float32),
        "sum": np.zeros(1, np.float64),
    }


def _pairs(random: np.random.RandomState) -> Buffers:
    sizes = {name: integers(random, 1, 33, 12) for name in ("left_size", "right_size")}
    text = {name: random.randint(97, 101, (12, 32)).astype(np.int8) for name in ("left", "right")}
    return {**text, **sizes, "result": np.zeros(12, np.int32)}


def _attention(random: np.random.RandomState) -> Buffers:
    return {name: floats(random, 37, 64) * F32(2) for name in "qkv"} | {"out": np.zeros((37, 64), np.float32)}


def _groups(random: np.random.RandomState) -> Buffers:
    names = {"tiles": 48, "warps": 12, "flags": 360, "odd": 360}
    return {"in": integers(random, -100, 100, 360)} | {name: np.zeros(size, np.int32) for name, size in names.items()}


def _volume(random: np.random.RandomState) -> Buffers:
    volume = random.randint(-1000, 1000, (5, 9, 13)).astype(np.int16)
    return {"in": volume, "out": np.zeros_like(volume)}


def _runs(random: np.random.RandomState) -> Buffers:
    runs = integers(random, -50, 50, 300)
    for start in range(0, 300, 64):
        runs[start : start + 64].sort()
    return {"in": runs, "out": np.zeros(300, np.int32)}


def _tree(random: np.random.RandomState) -> Buffers:
    nodes = np.zeros(40, NODE)
    nodes["weight"] = random.randint(-100, 100, 40) / 8
    nodes["name"] = random.randint(97, 123, (40, 3))
    children = np.arange(80).reshape(40, 2) + 1
    nodes["child"] = np.where(children < 40, children, -1)
    packed = np.frombuffer(random.bytes(160), np.uint32).copy()
    zeros = {"values": np.zeros(40, np.int32), "counter": np.zeros(4, np.int32)}
    return {"nodes": nodes.view(np.uint8), "packed": packed, "weights": np.zeros(40, np.float64), **zeros}


def _matrices(random: np.random.RandomState) -> Buffers:
    """Small whole numbers: every sum is exact, in half as well."""
    halves = {name: random.randint(-4, 5, 512).astype(np.float16) for name in ("a", "b")}
    gemm = {"left": floats(random, 32, 48).astype(np.float16), "right": floats(random, 48, 80).astype(np.float16)}
    start = random.randint(-20, 21, 3840)
    results = {"singles": start.astype(np.float32), "halves": start.astype(np.float16)}
    return halves | gemm | results | {"product": np.zeros((32, 80), np.float32)}


MORE_PROGRAMS = (
    Program("sha256", _sha256,
            (Launch("sha256", (2, 1, 1), (32, 1, 1), ("messages", "lengths", "digests", I32(64), I32(40))),),
            {"digests": 0}, digests),
    Program("fft", _fft, (Launch("fft", (3, 1, 1), (128, 1, 1), ("in", "out")),),
            {"out": 1e-5}, _transformed, absolute={"out": 2e-5}),
    Program("bfs", _graph, tuple(_bfs_level(level) for level in range(3)),
            {"distance": 0, "frontier3": 0, "size3": 0}, levels, unordered=("frontier3",)),
    Program("hash_table", _words,
            (Launch("insert", (3, 1, 1), (128, 1, 1), ("keys", "table", I32(101), I32(300))),
             Launch("largest", (3, 1, 1), (128, 1, 1), ("keys", "largest", "sum", I32(300)))),
            {"table": 0, "largest": 0, "sum": 0}, count_words, unordered=("table",)),
    Program("edit_distance", _pairs,
            (Launch("edit_distance", (12, 1, 1), (33, 1, 1), ("left", "right", "left_size", "right_size", "result")),),
            {"result": 0}, distances),
    Program("attention", _attention,
            (Launch("attention", (10, 1, 1), (32, 4, 1), ("q", "k", "v", "out", I32(37), F32(0.125))),),
            {"out": 1e-5}, attend, absolute={"out": 1e-5}),
    Program("groups", _groups,
            (Launch("group_sums", (4, 1, 1), (96, 1, 1), ("in", "tiles", "warps", "flags", I32(360))),
             Launch("odd_blocks", (3, 1, 1), (50, 3, 1), ("in", "odd", I32(360)))),
            {"tiles": 0, "warps": 0, "flags": 0, "odd": 0}, group_answers),
    Program("volume", _volume,
            (Launch("blur", (4, 3, 3), (4, 4, 2), ("in", "out", I32(13), I32(9), I32(5))),), {"out": 0}, box_filter),
    Program("merge", _runs,
            (Launch("merge_runs", (5, 1, 1), (64, 1, 1), ("in", "out", I32(64), I32(300))),), {"out": 0}, merged),
    Program("wmma", _matrices,
            (Launch("products", (3, 1, 1), (32, 1, 1), ("a", "b", "singles", "halves")),
             Launch("gemm", (2, 2, 1), (32, 4, 1), ("left", "right", "product", I32(80), I32(48)))),
            {"singles": 0, "halves": 0, "product": 1e-5}, matrix_products, absolute={"product": 1e-5}),
    Program("structures", _tree,
            (Launch("walk", (2, 1, 1), (32, 1, 1), ("nodes", "packed", "weights", "values", I32(40))),
             Launch("read_counter", (1, 1, 1), (4, 1, 1), ("counter",))),
            {"weights": 0, "values": 0, "counter": 0}, tree_walk),
)  # fmt: skip

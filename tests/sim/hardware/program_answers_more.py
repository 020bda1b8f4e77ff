"""Python's answers to the programs of program_list_more.py."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np

Buffers = dict[str, np.ndarray]


def digests(buffers: Buffers) -> Buffers:
    rows = []
    for message, length in zip(buffers["messages"], buffers["lengths"], strict=True):
        digest = hashlib.sha256(message[:length].tobytes()).digest()
        rows.append(np.frombuffer(digest, ">u4").astype(np.uint32))
    return {"digests": np.stack(rows)}


def levels(buffers: Buffers) -> Buffers:
    distance, level = buffers["distance"].copy(), [17]
    for depth in range(1, 4):
        found = []
        for node in level:
            for other in buffers["neighbours"][buffers["starts"][node] : buffers["starts"][node + 1]]:
                if distance[other] < 0:
                    distance[other] = depth
                    found.append(other)
        level = found
    frontier = np.zeros(200, np.int32)
    frontier[: len(level)] = level
    return {"distance": distance, "frontier3": frontier, "size3": np.array([len(level)], np.int32)}


def count_words(buffers: Buffers) -> Buffers:
    table = np.full(101, 2**64 - 1, np.uint64)
    for slot, (key, count) in enumerate(Counter(buffers["keys"].tolist()).items()):
        table[slot] = key << 32 | count
    largest = buffers["keys"].max().astype(np.float32)
    return {"table": table, "largest": largest[None], "sum": buffers["keys"].astype(np.float64).sum()[None]}


def distances(buffers: Buffers) -> Buffers:
    result = []
    for pair in range(12):
        a = buffers["left"][pair, : buffers["left_size"][pair]]
        b = buffers["right"][pair, : buffers["right_size"][pair]]
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, start=1):
            before, row[0] = row[0], i
            for j, y in enumerate(b, start=1):
                before, row[j] = row[j], min(before + int(x != y), row[j] + 1, row[j - 1] + 1)
        result.append(row[-1])
    return {"result": np.array(result, np.int32)}


def attend(buffers: Buffers) -> Buffers:
    q, k, v = (buffers[name].astype(np.float64) for name in "qkv")
    scores = np.where(np.tri(37, dtype=bool), q @ k.T * 0.125, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return {"out": weights / weights.sum(1, keepdims=True) @ v}


def group_answers(buffers: Buffers) -> Buffers:
    values = np.concatenate([buffers["in"], np.zeros(24, np.int32)])
    tiles, warps, blocks = values.reshape(-1, 8), values.reshape(-1, 32), values.reshape(-1, 96)
    flags = (tiles > 90).any(1) + 2 * (tiles > -90).all(1)
    flags = np.repeat(flags, 8) + 4 * np.repeat(blocks.sum(1) > 0, 96)
    rows = np.concatenate([buffers["in"], np.zeros(90, np.int32)]).reshape(3, 3, 50)
    sums = np.repeat(np.maximum(rows, 0).sum(2), 50, axis=1).reshape(3, 150)
    odd = sums * 1000 + (rows > 0).sum((1, 2))[:, None]
    answers = {"tiles": tiles.sum(1), "warps": warps.sum(1), "flags": flags[:360], "odd": odd.reshape(-1)[:360]}
    return {name: answer.astype(np.int32) for name, answer in answers.items()}


def box_filter(buffers: Buffers) -> Buffers:
    padded = np.pad(buffers["in"].astype(np.int32), 1, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3, 3)).sum((3, 4, 5))
    return {"out": np.trunc(windows / 27).astype(np.int16)}


def merged(buffers: Buffers) -> Buffers:
    runs = buffers["in"].copy()
    for start in range(0, 300, 128):
        runs[start : start + 128].sort()
    return {"out": runs}


def tree_walk(buffers: Buffers) -> Buffers:
    """Node i's children are 2 i + 1 and 2 i + 2; the bit fields hold 3, 12 (signed) and 17 bits."""
    weights = buffers["nodes"].view(np.float64).reshape(40, 3)[:, 0].copy()
    letters = buffers["nodes"].reshape(40, 24)[:, 16].astype(np.int64) - buffers["nodes"].reshape(40, 24)[:, 18]
    for i in reversed(range(40)):
        for child in (2 * i + 1, 2 * i + 2):
            if child < 40:
                weights[i] += weights[child]
                letters[i] += letters[child]
    packed = buffers["packed"].astype(np.int64)
    value = (packed >> 3 & 4095) + (packed & 7)
    value = (value + 2048) % 4096 - 2048
    return {
        "weights": weights,
        "values": (value * 4 + (packed >> 15 & 3) + letters).astype(np.int32),
        "counter": np.full(4, 10, np.int32),
    }


def matrix_products(buffers: Buffers) -> Buffers:
    """Three shapes in five combinations of layouts; C is doubled before it is added to."""
    results, at = buffers["singles"].astype(np.float64), 0
    for m, n in ((16, 16), (32, 8), (8, 32)):
        a, b = (buffers[name].astype(np.float64) for name in "ab")
        rows_a, columns_a = a[: 16 * m].reshape(m, 16), a[: 16 * m].reshape(16, m).T
        rows_b, columns_b = b[: 16 * n].reshape(16, n), b[: 16 * n].reshape(n, 16).T
        pairs = ((rows_a, rows_b), (rows_a, columns_b), (columns_a, rows_b), (columns_a, columns_b), (rows_a, rows_b))
        for number, (left, right) in enumerate(pairs):
            product = left @ right
            stored = product.T if number == 4 else product
            results[at : at + m * n] = 2 * results[at : at + m * n] + stored.reshape(-1)
            at += m * n
    product = buffers["left"].astype(np.float64) @ buffers["right"].astype(np.float64)
    return {"singles": results, "halves": results, "product": product}

"""NumPy's answers to the programs, each in another way than the kernel computes it."""

from __future__ import annotations

import itertools
import math

import numpy as np

Buffers = dict[str, np.ndarray]


def byte_histogram(buffers: Buffers) -> Buffers:
    return {"bins": np.bincount(buffers["data"], minlength=256).astype(np.uint32)}


def diffuse(buffers: Buffers) -> Buffers:
    def step(grid: np.ndarray) -> np.ndarray:
        edge = np.pad(grid, 1, mode="edge")
        return 0.5 * grid + 0.125 * (edge[1:-1, :-2] + edge[1:-1, 2:] + edge[:-2, 1:-1] + edge[2:, 1:-1])

    first = step(buffers["a"].astype(np.float64))
    return {"b": first, "a": step(first)}


def escape_times(_: Buffers) -> Buffers:
    """In float32, where each operation rounds once; the fused ones go through float64, where these are exact enough."""
    single, double = np.float32, np.float64
    cx = np.broadcast_to((np.arange(70) * double(single(0.05)) - 2.0).astype(single)[None, :], (50, 70))
    cy = np.broadcast_to((np.arange(50) * double(single(0.05)) - 1.25).astype(single)[:, None], (50, 70))
    x, y = np.zeros((50, 70), single), np.zeros((50, 70), single)
    image, inside = np.zeros((50, 70), np.uint16), np.ones((50, 70), bool)
    for _step in range(60):
        with np.errstate(all="ignore"):
            inside &= x * x + y * y <= single(4)
            x, y = (x * x - y * y) + cx, ((single(2) * x).astype(double) * y + cy).astype(single)
        image += inside
    return {"image": image}


def sort_by_digit(buffers: Buffers) -> Buffers:
    digit = (buffers["keys"] >> 8) & 15
    return {"out": buffers["keys"][np.argsort(digit, kind="stable")]}


def gravity(buffers: Buffers) -> Buffers:
    bodies = buffers["positions"].astype(np.float64)
    apart = bodies[None, :, :3] - bodies[:, None, :3]
    squared = (apart**2).sum(-1) + float(np.float32(0.01))
    pull = (apart * (bodies[None, :, 3] * squared**-1.5)[..., None]).sum(1)
    velocities = buffers["velocities"].astype(np.float64)
    velocities[:, :3] += pull * float(np.float32(0.01))
    return {"velocities": velocities}


def mix_rows(buffers: Buffers) -> Buffers:
    x, gain, bias = (buffers[name].astype(np.float64) for name in ("x", "gain", "bias"))
    centred = x - x.mean(1, keepdims=True)
    return {"y": centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gain + bias}


def queens(_: Buffers) -> Buffers:
    each = np.zeros(49, np.uint32)
    for order in itertools.permutations(range(7)):
        if all(abs(order[i] - order[j]) != j - i for i, j in itertools.combinations(range(7), 2)):
            each[order[0] * 7 + order[1]] += 1
    return {"each": each, "total": np.array([each.sum()], np.uint32)}


def sparse_product(buffers: Buffers) -> Buffers:
    dense = np.zeros((21, 200))
    starts = buffers["starts"]
    for row in range(21):
        for i in range(starts[row], starts[row + 1]):
            dense[row, buffers["columns"][i]] += buffers["values"][i]
    return {"y": dense @ buffers["x"]}


def settle(buffers: Buffers) -> Buffers:
    balances = buffers["balances"].copy()
    moved = buffers["from"] != buffers["to"]
    np.subtract.at(balances, buffers["from"][moved], buffers["amounts"][moved])
    np.add.at(balances, buffers["to"][moved], buffers["amounts"][moved])
    return {"balances": balances, "locks": np.zeros(10, np.int32)}


def option_prices(buffers: Buffers) -> Buffers:
    def normal(x: float) -> float:
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    ratios = [(math.log(100.0 / strike) + 0.02) / 0.2 for strike in buffers["strikes"]]
    prices = [100 * normal(d) - float(k) * normal(d - 0.2) for d, k in zip(ratios, buffers["strikes"], strict=True)]
    return {"closed": np.array(prices)}

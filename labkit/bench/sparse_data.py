"""Synthetic queries, keys and values with the structure that makes sparse prefill possible, and needles in them.

Random Gaussian keys would spread attention evenly, and nothing could be left out. Here, as in trained models:

    topics      the text changes its topic every 300 tokens on average; keys of a topic share a direction
    neighbours  keys and queries vary slowly (each is 0.9 of the one before, and something new), values too
    sink        the first four keys lie in a direction that every query has some of
    position    eight pairs of channels turn slowly, as RoPE makes them: near keys score higher
    outliers    a constant in every key, large in three channels
    heads       from blunt to sharp: their queries are 0.6 to 1.2 times as long

A needle is a key that one row pays NEEDLE_MASS of its attention to. Kind "row": the row was turned towards a key that
sticks out; kind "key": the key was turned towards a row that is like any other of its tile, which is harder to guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from labkit.bench.sparse_tiles import tile_starts
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE

TOPICS, TOPIC_TOKENS, PAIRS, SINKS = 64, 300, 8, 4
CENTRE, SMOOTH, WHITE = 9.0, 0.75, 0.5  # sizes of a key's parts: its topic's direction, and noise for each channel
NEEDLE_MASS = 0.33
DEPTHS = (0.02, 0.25, 0.5, 0.75, 0.97)  # of a tile's context, where its needles lie


@dataclass(frozen=True)
class Needle:
    """tile, head, row: who asks; position: of the key; kind: "row" or "key"."""

    tile: int
    head: int
    row: int
    position: int
    kind: str


@dataclass(frozen=True, eq=False)
class SparseData:
    """keys, values: fp32 [n, D]; queries: fp32 [tiles, 64, heads, D]; starts: position of each tile's first row."""

    keys: Tensor
    values: Tensor
    queries: Tensor
    starts: list[int]
    needles: list[Needle]

    @property
    def scale(self) -> float:
        return float(self.keys.shape[1]) ** -0.5


def synthetic(context: int, tiles: int, heads: int, dim: int, seed: int) -> SparseData:
    """``tiles`` tiles spread over the last three quarters of ``context`` tokens, the last one at its end.

    context: a multiple of 64, at least 128 for each tile. Five needles of each tile and head.
    """
    draw = torch.Generator().manual_seed(seed)
    starts = tile_starts(context, tiles)
    centres = torch.randn(TOPICS, dim, generator=draw) / math.sqrt(dim)
    topics, sink = _topics(context, draw), torch.randn(dim, generator=draw) / math.sqrt(dim)
    waves = _waves(context)
    keys = CENTRE * centres[topics] + SMOOTH * _smooth(context, dim, draw) + WHITE * _noise(context, dim, draw)
    keys[:SINKS] = 0.3 * keys[:SINKS] + 14 * sink
    keys[:, -2 * PAIRS :] = waves
    keys += _offset(dim, draw)
    values = 0.7 * torch.randn(TOPICS, dim, generator=draw)[topics]
    values += 0.5 * _smooth(context, dim, draw) + 0.5 * _noise(context, dim, draw)
    lengths = torch.linspace(0.6, 1.2, heads)[:, None]
    queries = torch.stack(
        [
            torch.stack([_queries(centres, topics[s : s + QUERY_TILE], sink, waves[s:], draw) for _ in range(heads)], 1)
            * lengths
            for s in starts
        ]
    )
    data = SparseData(keys, values, queries, starts, [])
    for tile in range(tiles):
        for number, depth in enumerate(DEPTHS):
            _plant(data, tile, depth, ("row", "key")[(tile + number) % 2], draw)
    return data


def needle_mass(data: SparseData, needle: Needle) -> float:
    """The share of its attention that the needle's row pays to the needle's key, causally."""
    position = data.starts[needle.tile] + needle.row
    logits = data.keys[: position + 1] @ data.queries[needle.tile, needle.row, needle.head] * data.scale
    return float((logits[needle.position] - logits.logsumexp(0)).exp())


def _plant(data: SparseData, tile: int, depth: float, kind: str, draw: Generator) -> None:
    """One needle for each head: all ask for one key, or each for a key of its own."""
    heads, start = data.queries.shape[2], data.starts[tile]
    first = max(SINKS, int(depth * start)) + int(torch.randint(PAGE_SIZE // 2, (), generator=draw))
    first = min(first, start - 1)  # a short context ends before that: the tile's own keys are no needles
    unit = torch.randn(data.keys.shape[1], generator=draw)
    unit /= unit.norm()
    if kind == "row":
        data.keys[first] += 10 * unit
    for head in range(heads):
        row = int(torch.randint(QUERY_TILE, (), generator=draw))
        position = first if kind == "row" else min(first + 70 * head, start - 1)
        if kind == "row":
            _turn_row(data, tile, head, row, position, unit)
        else:
            _turn_key(data, tile, head, row, position)
        data.needles.append(Needle(tile, head, row, position, kind))


def _turn_row(data: SparseData, tile: int, head: int, row: int, position: int, unit: Tensor) -> None:
    """Lengthen the row along ``unit``, a half at a time, until the key has its share, or no more of it to win.

    The share's logarithm is concave in the length: where another key has more of ``unit``, it sinks once and for all.
    """
    seen = data.keys[: data.starts[tile]]
    logits, change = (seen @ x * data.scale for x in (data.queries[tile, row, head], unit / 2))
    steps, share = 0, _log_share(logits, position)
    while share < math.log(NEEDLE_MASS):
        logits, before = logits + change, share
        share = _log_share(logits, position)
        if share <= before:
            break
        steps += 1
    data.queries[tile, row, head] += steps / 2 * unit


def _log_share(logits: Tensor, position: int) -> float:
    return float(logits[position] - logits.logsumexp(0))


def _turn_key(data: SparseData, tile: int, head: int, row: int, position: int) -> None:
    """Lengthen the key along what sets the row apart from its tile, until it has its share; sums are logarithms."""
    query, mean = data.queries[tile, row, head], data.queries[tile, :, head].mean(0)
    unit = (query - mean) / (query - mean).norm()
    logits = data.keys[: data.starts[tile]] @ query * data.scale
    present = float(logits[position])
    logits[position] = -torch.inf
    wanted = float(logits.logsumexp(0)) + math.log(NEEDLE_MASS / (1 - NEEDLE_MASS))
    data.keys[position] += max(0.0, (wanted - present) / (float(query @ unit) * data.scale)) * unit


def _queries(centres: Tensor, topics: Tensor, sink: Tensor, waves: Tensor, draw: Generator) -> Tensor:
    """The 64 rows of one head: their own topic, one of three others, the sink, their position, noise."""
    dim = centres.shape[1]
    other = torch.randint(TOPICS, (3,), generator=draw)[torch.arange(QUERY_TILE) // 22]
    rows = math.sqrt(dim) * (0.8 * centres[topics] + centres[other])
    rows += 0.8 * _smooth(QUERY_TILE, dim, draw) + 0.6 * _noise(QUERY_TILE, dim, draw)
    rows += math.sqrt(dim) * 0.9 * torch.rand(QUERY_TILE, 1, generator=draw) * sink
    rows[:, -2 * PAIRS :] = 4 * torch.rand((), generator=draw) * waves[:QUERY_TILE]
    return rows


def _topics(context: int, draw: Generator) -> Tensor:
    """The topic of every token: stretches of at least 64 tokens."""
    lengths = PAGE_SIZE + (-(1 - torch.rand(context // PAGE_SIZE + 1, generator=draw)).log() * TOPIC_TOKENS).long()
    return torch.randint(TOPICS, lengths.shape, generator=draw).repeat_interleave(lengths)[:context]


def _waves(context: int) -> Tensor:
    """Cosines and sines of periods from 32 tokens on, each nearly twice the one before: [context, 16]."""
    angles = torch.arange(context)[:, None] * (torch.pi / (16 * 1.9 ** torch.arange(PAIRS)))
    return math.sqrt(2) * torch.cat((angles.cos(), angles.sin()), dim=1)


def _offset(dim: int, draw: Generator) -> Tensor:
    offset = 0.3 * torch.randn(dim, generator=draw)
    offset[torch.randperm(dim, generator=draw)[:3]] *= 12
    return offset


def _noise(count: int, dim: int, draw: Generator) -> Tensor:
    return torch.randn(count, dim, generator=draw)


def _smooth(count: int, dim: int, draw: Generator) -> Tensor:
    """Noise of variance 1 whose neighbours correlate by 0.9 (24 terms of the moving average)."""
    white, result = _noise(count + 24, dim, draw), torch.zeros(count, dim)
    for lag in range(24):
        result += 0.9**lag * white[24 - lag : 24 - lag + count]
    return result * math.sqrt(1 - 0.9**2)

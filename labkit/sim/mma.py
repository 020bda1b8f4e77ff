"""mma.sync.m8n8k4, the V100's tensor-core instruction: four 8x8x4 products per warp, one for each quad-pair of lanes.

Lane = 16 * high + 4 * quad_pair + low. Within a quad-pair, fragments lie like this (PTX manual):

    A row-major: a lane holds A[4*high + low][0..3]      column-major: A[4*high + 0..3][low]
    B row-major: B[low][4*high + 0..3]                   column-major: B[0..3][4*high + low]
    C, D as f32: element i is row 4*high + (i & 2) + (low & 1), column (i & 4) + (low & 2) + (i & 1)
    C, D as f16: element i is row 4*high + low, column i

Arithmetic: products of halves are exact in f32; then d = (((p0 + p1) + p2) + p3) + c, each sum rounded to f32, and
once more to half where D is f16. `labkit.sim.mma_volta` has the V100's own way of adding.

Fragments of all quad-pairs and all products of a run are put together into one batch of 8x4 and 4x8 matrices; one
gather brings their products back to lanes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim import mma_volta, warp
from labkit.sim.geometry import WARP

if TYPE_CHECKING:
    from labkit.sim.threads import Threads

Array = npt.NDArray[Any]
HALF_TO_FLOAT: Array = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
LANE = np.arange(WARP)
HIGH, QUAD_PAIR, LOW = LANE // 16, LANE // 4 % 4, LANE % 4
ELEMENT = np.arange(8)[:, None]
ROW = {"f32": 4 * HIGH + (ELEMENT & 2) + (LOW & 1), "f16": 4 * HIGH + LOW + 0 * ELEMENT}  # [element, lane]
COLUMN = {"f32": (ELEMENT & 4) + (LOW & 2) + (ELEMENT & 1), "f16": ELEMENT + 0 * LANE}


def multiply(
    threads: Threads, layout_a: str, layout_b: str, d_type: str, c_type: str, tiles: list[Any], sites: list[int]
) -> list[list[Array]]:
    """A run of independent products.

    Args:
        layout_a, layout_b: "row" or "col".
        d_type, c_type: "f32" (8 registers, float32) or "f16" (4 registers, uint32 with two halves each).
        tiles: (A registers [2], B registers [2], C registers) of each product.

    Returns: the D registers of each product.
    """
    if not threads.complete_warps:
        text = "executes mma.sync while other lanes of its warp do not"
        threads.run.report("missing-lanes", sites[0], text, threads, np.arange(threads.count))
        padded = [tuple([_pad(threads, register) for register in part] for part in tile) for tile in tiles]
        results = _products(threads, layout_a, layout_b, d_type, c_type, padded)
        return [[_unpad(threads, register) for register in registers] for registers in results]
    return _products(threads, layout_a, layout_b, d_type, c_type, tiles)


def _pad(threads: Threads, register: Array) -> Array:
    return warp.to_warps(threads, np.broadcast_to(register, threads.shape)).reshape(1, -1)


def _unpad(threads: Threads, register: Array) -> Array:
    return warp.from_warps(threads, np.ascontiguousarray(register).reshape(1, -1, WARP))


def _products(
    threads: Threads, layout_a: str, layout_b: str, d_type: str, c_type: str, tiles: list[Any]
) -> list[list[Array]]:
    width = threads.shape[1] if threads.complete_warps else warp.places(threads)[2] * WARP
    a = _operand([tile[0] for tile in tiles], width, (0, 2, 1, 3, 4) if layout_a == "row" else (0, 2, 1, 4, 3))
    b = _operand([tile[1] for tile in tiles], width, (0, 2, 3, 1, 4) if layout_b == "row" else (0, 2, 4, 1, 3))
    a, b = a.reshape(*a.shape[:3], 8, 4), b.reshape(*b.shape[:3], 4, 8)
    registers = [tile[2] for tile in tiles]
    if threads.run.options.truncating_mma:
        terms = [_to_lanes(term, d_type, width) for term in _terms(a, b)]
        total = mma_volta.add_five(terms, _accumulators(registers, width, c_type, d_type))
    else:
        total = _to_lanes(_sum_of_products(a, b), d_type, width)
        previous = threads.run.mma_results.find(registers) if c_type == d_type == "f32" else None
        if previous is not None and previous.shape == total.shape:
            total += previous
        else:
            total = total + _accumulators(registers, width, c_type, d_type)
    if d_type == "f32":
        results = [[total[tile, :, element] for element in range(8)] for tile in range(len(tiles))]
        threads.run.mma_results.keep(results, total)
        return results
    halves = total.astype(np.float16).view(np.uint16).astype(np.uint32)
    packed = halves[:, :, 0::2] | halves[:, :, 1::2] << np.uint32(16)
    return [[packed[tile, :, pair] for pair in range(4)] for tile in range(len(tiles))]


def _terms(a: Array, b: Array) -> list[Array]:
    """The four products that each element sums up: [..., 8, 8] each."""
    return [a[..., :, k, None] * b[..., k, None, :] for k in range(4)]


def _sum_of_products(a: Array, b: Array) -> Array:
    """((p0 + p1) + p2) + p3 for each element of the product of two batches of matrices."""
    if matmul_keeps_order():
        return np.matmul(a, b)
    total, *terms = _terms(a, b)
    for term in terms:
        total += term
    return total


@lru_cache(maxsize=1)
def matmul_keeps_order() -> bool:
    """Whether this machine's matrix multiplication, by far the fastest way, adds in the order that we promise."""
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((64, *shape)).astype(np.float16) for shape in ((8, 4), (4, 8)))
    total, *terms = _terms(a.astype(np.float32), b.astype(np.float32))
    for term in terms:
        total = total + term
    return bool((np.matmul(a.astype(np.float32), b.astype(np.float32)) == total).all())


class Results:
    """The latest results, so that a run which accumulates onto the registers of an earlier one adds all at once."""

    LIMIT = 32

    def __init__(self) -> None:
        self._known: dict[int, tuple[list[Array], Array]] = {}

    def keep(self, results: list[list[Array]], total: Array) -> None:
        """Remember the array behind these registers."""
        if len(self._known) >= self.LIMIT:
            self._known.clear()
        registers = [register for tile in results for register in tile]
        self._known[id(registers[0])] = (registers, total)

    def find(self, tiles: list[list[Array]]) -> Array | None:
        """The array whose parts, in this order, are exactly these registers."""
        registers, total = self._known.get(id(tiles[0][0]), ([], None))
        wanted = [register for tile in tiles for register in tile]
        same = len(wanted) == len(registers) and all(map(lambda x, y: x is y, wanted, registers))
        return total if same else None


# Between lanes and matrices


def _operand(fragments: list[Any], width: int, order: tuple[int, ...]) -> Array:
    """Fragments of A or B as f32 [products, rows, quad-pairs, ...].

    order: how the axes (warp, high, quad-pair, low, half) are to follow each other.
    Neighbouring products share fragments: each one is converted once.
    """
    numbers: dict[tuple[int, int], int] = {}
    which = [numbers.setdefault((id(pair[0]), id(pair[1])), len(numbers)) for pair in fragments]
    different = [fragments[which.index(number)] for number in range(len(numbers))]
    rows = max(register.shape[0] for pair in different for register in pair)
    words = np.empty((len(different), rows, width, 2), np.uint32)
    for number, pair in enumerate(different):
        words[number, :, :, 0] = pair[0]
        words[number, :, :, 1] = pair[1]
    lanes = words.view(np.uint16).reshape(-1, 2, 4, 4, 4).transpose(order)
    matrices = HALF_TO_FLOAT.take(lanes, mode="clip").reshape(len(different), rows, width // 8, -1)
    return matrices if len(different) == len(which) else matrices.take(which, axis=0)


def _to_lanes(matrices: Array, d_type: str, width: int) -> Array:
    """[products, rows, quad-pairs, 8, 8] -> [products, rows, 8 elements, threads]."""
    products, rows = matrices.shape[:2]
    return matrices.reshape(products, rows, -1).take(_lane_map(d_type, width), axis=2, mode="clip")


@lru_cache(maxsize=64)
def _lane_map(d_type: str, width: int) -> Array:
    """[8, threads]: where each lane's elements lie among the 8x8 matrices of all quad-pairs."""
    one_warp = QUAD_PAIR * 64 + ROW[d_type] * 8 + COLUMN[d_type]
    return (one_warp[:, None, :] + np.arange(width // WARP)[:, None] * 256).reshape(8, width)


def _accumulators(registers: list[list[Array]], width: int, c_type: str, d_type: str) -> Array:
    """C as f32 [products, rows, 8, threads], each element where D wants it."""
    rows = max(register.shape[0] for tile in registers for register in tile)
    c = np.empty((len(registers), rows, len(registers[0]), width), np.float32 if c_type == "f32" else np.uint32)
    for number, tile in enumerate(registers):
        for position, register in enumerate(tile):
            c[number, :, position] = register
    if c_type == "f16":
        halves = np.stack([c & np.uint32(0xFFFF), c >> np.uint32(16)], axis=3)
        c = HALF_TO_FLOAT.take(halves).reshape(len(registers), rows, 8, width)
    if c_type != d_type:
        c = c.reshape(*c.shape[:2], -1).take(_layout_change(c_type, d_type, width), axis=2)
    return c


@lru_cache(maxsize=16)
def _layout_change(c_type: str, d_type: str, width: int) -> Array:
    """[8, threads]: where the C element of each D element lies among [8, threads]."""
    place = np.empty((8, 8, 4), np.int64)  # row, column, quad-pair -> element * width + lane
    place[ROW[c_type], COLUMN[c_type], QUAD_PAIR] = ELEMENT * width + LANE
    one_warp = place[ROW[d_type], COLUMN[d_type], QUAD_PAIR]
    return (one_warp[:, None, :] + np.arange(width // WARP)[:, None] * WARP).reshape(8, width)

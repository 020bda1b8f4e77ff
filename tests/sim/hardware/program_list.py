"""The programs: sorting, scanning, stencils, matrices, locks, interpreters, ..."""

from __future__ import annotations

import numpy as np
from sim.hardware.program_answers import (
    byte_histogram,
    diffuse,
    escape_times,
    gravity,
    mix_rows,
    option_prices,
    queens,
    settle,
    sort_by_digit,
    sparse_product,
)
from sim.hardware.program_list_more import MORE_PROGRAMS
from sim.hardware.programs import Buffers, Launch, Program, floats, integers

I32, U32, F32 = np.int32, np.uint32, np.float32


def _transpose(random: np.random.RandomState) -> Buffers:
    return {"in": floats(random, 70, 100), "out": np.zeros((100, 70), np.float32)}


def _scan(random: np.random.RandomState) -> Buffers:
    return {"data": integers(random, -1000, 1000, 1500), "sums": np.zeros(8, np.int32)}


def _histogram(random: np.random.RandomState) -> Buffers:
    data = (random.randint(0, 256, 5000) & random.randint(0, 256, 5000)).astype(np.uint8)
    return {"data": data, "bins": np.zeros(256, np.uint32)}


def _bitonic(random: np.random.RandomState) -> Buffers:
    return {"keys": np.frombuffer(random.bytes(4 * 1024), np.uint32).copy()}


def _bitonic_launches() -> tuple[Launch, ...]:
    launches = [Launch("sort_block", (4, 1, 1), (128, 1, 1), ("keys",))]
    for size in (512, 1024):
        stride = size // 2
        while stride:
            launches.append(Launch("merge_global", (4, 1, 1), (128, 1, 1), ("keys", U32(size), U32(stride))))
            stride //= 2
    return tuple(launches)


def _reduction(random: np.random.RandomState) -> Buffers:
    extremes = np.array([2**31 - 1, -(2**31)], np.int32)
    return {
        "in": floats(random, 3000), "partials": np.zeros(6, np.float32),
        "sum": np.zeros(1, np.float32), "extremes": extremes,
    }  # fmt: skip


def _reduced(buffers: Buffers) -> Buffers:
    whole = np.rint(buffers["in"] * np.float32(1000)).astype(np.int32)
    return {
        "sum": np.array([buffers["in"].sum(dtype=np.float64)]),
        "extremes": np.array([whole.min(), whole.max()], np.int32),
    }


def _stencil(random: np.random.RandomState) -> Buffers:
    return {"a": floats(random, 45, 50), "b": np.zeros((45, 50), np.float32)}


def _sgemm(random: np.random.RandomState) -> Buffers:
    return {"a": floats(random, 64, 40), "b": floats(random, 40, 96), "c": floats(random, 64, 96)}


def _radix(random: np.random.RandomState) -> Buffers:
    keys = np.frombuffer(random.bytes(4 * 1000), np.uint32).copy()
    return {"keys": keys, "out": np.zeros(1000, np.uint32), "counts": np.zeros(128, np.uint32)}


def _nbody(random: np.random.RandomState) -> Buffers:
    bodies = floats(random, 100, 4)
    bodies[:, 3] = np.abs(bodies[:, 3]) + F32(0.1)
    return {"positions": bodies, "velocities": floats(random, 100, 4)}


def _lookback(random: np.random.RandomState) -> Buffers:
    return {
        "in": integers(random, -100, 100, 1000), "out": np.zeros(1000, np.int32),
        "totals": np.zeros(8, np.int32), "ready": np.zeros(8, np.int32),
    }  # fmt: skip


def _compact(random: np.random.RandomState) -> Buffers:
    return {"in": integers(random, 0, 1000, 900), "out": np.zeros(900, np.int32), "count": np.zeros(1, np.int32)}


def _compacted(buffers: Buffers) -> Buffers:
    kept = buffers["in"][buffers["in"] > 600]
    return {"out": np.concatenate([kept, np.zeros(900 - kept.size, np.int32)]), "count": np.array([kept.size], I32)}


def _layernorm(random: np.random.RandomState) -> Buffers:
    rows = {name: floats(random, *shape) for name, shape in (("x", (5, 130)), ("gain", (130,)), ("bias", (130,)))}
    halves = {name: values.astype(np.float16) for name, values in rows.items()}
    return {**halves, "y": np.zeros((5, 130), np.float16)}


def _spmv(random: np.random.RandomState) -> Buffers:
    lengths = random.randint(0, 70, 21)
    lengths[3] = 0
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    count = int(starts[-1])
    return {
        "starts": starts, "columns": integers(random, 0, 200, count), "values": floats(random, count),
        "x": floats(random, 200), "y": np.zeros(21, np.float32),
    }  # fmt: skip


def _bank(random: np.random.RandomState) -> Buffers:
    return {
        "balances": np.full(10, 1000, np.int32), "locks": np.zeros(10, np.int32),
        "from": integers(random, 0, 10, 96), "to": integers(random, 0, 10, 96), "amounts": integers(random, 1, 50, 96),
    }  # fmt: skip


def _interpreter(random: np.random.RandomState) -> Buffers:
    return {"code": random.randint(0, 256, (100, 24)).astype(np.uint8), "results": np.zeros(100, np.int32)}


def _monte_carlo(random: np.random.RandomState) -> Buffers:
    strikes = (F32(100) + F32(20) * floats(random, 4)).astype(np.float32)
    return {"strikes": strikes, "sums": np.zeros(4, np.float64), "closed": np.zeros(4, np.float32)}


def _settings() -> np.void:
    """The structure of parameters.cu, laid out as C does."""
    fields = [("letter", "i1"), ("bias", "i2"), ("slope", "f4"), ("big", "i8"), ("table", "u1", (5,)), ("fine", "f8")]
    settings = np.zeros(1, np.dtype(fields, align=True))
    settings[0] = (-7, -1234, 0.375, -(2**40) + 5, (1, 2, 3, 250, 5), 0.1)
    return settings[0]


def _combined(_: Buffers) -> Buffers:
    i = np.arange(20)
    value = -7.0 - 12340 + 0.375 * i + float(-(2**40) + 5) + np.array([1, 2, 3, 250, 5])[i % 5] + 0.1
    return {"out": -(value + (-100 - 60000.0) + float((-(2**35) - 9) >> 3))}


def _function_arguments(random: np.random.RandomState) -> Buffers:
    """Moderate values, with zeros, integers, halves, infinities and NaN at the start."""
    special = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -2.5, 10.0, np.inf, -np.inf, np.nan, 1e-30, 100.0, -7.25, 3.0, 1e5]
    buffers: Buffers = {}
    for kind in (np.float32, np.float64):
        name = {np.float32: "single", np.float64: "double"}[kind]
        for operand, scale in (("x", 8), ("y", 4)):
            values = (floats(random, 160) * scale).astype(kind)
            values[:16] = special if operand == "x" else special[5:] + special[:5]
            buffers[f"{name}_{operand}"] = values
    return buffers | {"singles": np.zeros((49, 160), np.float32), "doubles": np.zeros((20, 160), np.float64)}


def _words(random: np.random.RandomState) -> Buffers:
    edges = [0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x80808080, 0x7F7F7F7F, 0x3C003C00, 0x7C00FC00, 0x7E00FE00]
    words = {name: np.frombuffer(random.bytes(4 * 256), np.uint32).copy() for name in ("x", "y", "hx", "hy")}
    for name, shift in (("x", 0), ("y", 3), ("hx", 0), ("hy", 5)):
        words[name][:10] = np.roll(edges, shift)
    words["x"][128:] = (floats(random, 128) * 3000).astype(np.float32).view(np.uint32)
    for name in ("hx", "hy"):
        words[name][64:] = (floats(random, 192, 2) * 4).astype(np.float16).view(np.uint32).reshape(-1)
    rows = {"integers": 52, "conversions": 25, "halves": 31}
    return words | {name: np.zeros((count, 256), np.uint32) for name, count in rows.items()}


PROGRAMS = (
    Program("transpose", _transpose,
            (Launch("transpose", (4, 3, 1), (32, 8, 1), ("out", "in", I32(100), I32(70))),),
            {"out": 0}, lambda b: {"out": np.ascontiguousarray(b["in"].T)}),
    Program("scan", _scan,
            (Launch("scan_blocks", (6, 1, 1), (128, 1, 1), ("data", "sums", I32(1500)), 1024),
             Launch("scan_blocks", (1, 1, 1), (4, 1, 1), ("sums", np.uint64(0), I32(6)), 32),
             Launch("add_sums", (6, 1, 1), (128, 1, 1), ("data", "sums", I32(1500)))),
            {"data": 0}, lambda b: {"data": (np.cumsum(b["data"]) - b["data"]).astype(np.int32)}),
    Program("histogram", _histogram,
            (Launch("histogram", (3, 1, 1), (192, 1, 1), ("data", "bins", I32(5000))),), {"bins": 0}, byte_histogram),
    Program("bitonic_sort", _bitonic, _bitonic_launches(), {"keys": 0}, lambda b: {"keys": np.sort(b["keys"])}),
    Program("reduction", _reduction,
            (Launch("reduce", (6, 1, 1), (128, 1, 1), ("in", "partials", "sum", "extremes", I32(3000))),),
            {"partials": 0, "sum": 0, "extremes": 0}, _reduced),
    Program("stencil", _stencil,
            (Launch("stencil", (4, 3, 1), (16, 16, 1), ("a", "b", I32(50), I32(45))),
             Launch("stencil", (4, 3, 1), (16, 16, 1), ("b", "a", I32(50), I32(45)))),
            {"a": 1e-6, "b": 1e-6}, diffuse, absolute={"a": 1e-7, "b": 1e-7}),
    Program("sgemm", _sgemm,
            (Launch("sgemm", (3, 2, 1), (64, 1, 1), (I32(64), I32(96), I32(40), F32(0.75), "a", "b", F32(-0.5), "c")),),
            {"c": 1e-6}, lambda b: {"c": 0.75 * b["a"].astype(np.float64) @ b["b"] - 0.5 * b["c"]},
            absolute={"c": 1e-6}),
    Program("mandelbrot", lambda _: {"image": np.zeros((50, 70), np.uint16)},
            (Launch("mandelbrot", (5, 7, 1), (16, 8, 1),
                    ("image", I32(70), I32(50), F32(-2.0), F32(-1.25), F32(0.05), I32(60))),),
            {"image": 0}, escape_times),
    Program("radix_sort", _radix,
            (Launch("count", (8, 1, 1), (128, 1, 1), ("keys", "counts", I32(8), I32(1000))),
             Launch("scan_counts", (1, 1, 1), (128, 1, 1), ("counts", I32(128))),
             Launch("scatter", (8, 1, 1), (128, 1, 1), ("keys", "out", "counts", I32(8), I32(1000)))),
            {"out": 0, "counts": 0}, sort_by_digit),
    Program("nbody", _nbody,
            (Launch("nbody", (2, 1, 1), (64, 1, 1), ("positions", "velocities", F32(0.01), I32(100))),),
            {"velocities": 2e-5}, gravity, absolute={"velocities": 2e-5}),
    Program("lookback_scan", _lookback,
            (Launch("chained_scan", (8, 1, 1), (128, 1, 1), ("in", "out", "totals", "ready", I32(1000))),),
            {"out": 0}, lambda b: {"out": np.cumsum(b["in"]).astype(np.int32)}),
    Program("compact", _compact,
            (Launch("compact", (8, 1, 1), (128, 1, 1), ("in", "out", "count", I32(600), I32(900))),),
            {"out": 0, "count": 0}, _compacted, unordered=("out",)),
    Program("layernorm_half", _layernorm,
            (Launch("layernorm", (5, 1, 1), (64, 1, 1), ("x", "gain", "bias", "y", I32(65), F32(1e-5))),),
            {"y": 1e-3}, mix_rows, absolute={"y": 1e-3}),
    Program("nqueens", lambda _: {"total": np.zeros(1, np.uint32), "each": np.zeros(49, np.uint32)},
            (Launch("queens", (2, 1, 1), (32, 1, 1), ("total", "each")),), {"total": 0, "each": 0}, queens),
    Program("spmv", _spmv,
            (Launch("spmv", (6, 1, 1), (128, 1, 1), ("starts", "columns", "values", "x", "y", I32(21))),),
            {"y": 0}, sparse_product),
    Program("bank", _bank,
            (Launch("transfer", (3, 1, 1), (32, 1, 1), ("balances", "locks", "from", "to", "amounts", I32(96))),),
            {"balances": 0, "locks": 0}, settle),
    Program("interpreter", _interpreter,
            (Launch("interpret", (2, 1, 1), (64, 1, 1), ("code", "results", I32(24), I32(100))),),
            {"results": 0}, lambda _: {}),
    Program("parameters", lambda _: {"out": np.zeros(20, np.float64)},
            (Launch("combine", (1, 1, 1), (32, 1, 1),
                    ("out", _settings(), np.bool_(True), np.int8(-100), np.uint16(60000), np.int64(-(2**35) - 9),
                     I32(20))),),
            {"out": 1e-15}, _combined),
    Program("math_functions", _function_arguments,
            (Launch("single_precision", (2, 1, 1), (96, 1, 1), ("single_x", "single_y", "singles", I32(160))),
             Launch("double_precision", (2, 1, 1), (96, 1, 1), ("double_x", "double_y", "doubles", I32(160)))),
            {"singles": 2e-6, "doubles": 1e-14}, lambda _: {}, absolute={"singles": 1e-6, "doubles": 1e-15}),
    Program("intrinsics", _words,
            (Launch("integers", (2, 1, 1), (128, 1, 1), ("x", "y", "integers", I32(256))),
             Launch("conversions", (2, 1, 1), (128, 1, 1), ("x", "conversions", I32(256))),
             Launch("halves", (2, 1, 1), (128, 1, 1), ("hx", "hy", "halves", I32(256)))),
            {"integers": 0, "conversions": 0, "halves": 0}, lambda _: {}),
    Program("monte_carlo", _monte_carlo,
            (Launch("monte_carlo", (4, 1, 1), (64, 1, 1), ("strikes", "sums", "closed", I32(256))),),
            {"sums": 1e-5, "closed": 1e-5}, option_prices, absolute={"closed": 1e-4}),
    *MORE_PROGRAMS,
)  # fmt: skip

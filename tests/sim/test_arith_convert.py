"""cvt against rationals: every pair of number types, every rounding, saturation, NaN."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from helpers.ptx_snippets import evaluate, exact, random_floats, rounded, same_floats, size_of

COUNT = 256
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "f32", "f64")
TO_INTEGER = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}  # Python's round is to even


def limits(type_name: str) -> tuple[int, int]:
    bits = 8 * size_of(type_name)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_name[0] == "s" else (0, (1 << bits) - 1)


def random_integers(random: np.random.Generator, type_name: str) -> np.ndarray:
    bits = 8 * size_of(type_name)
    values = random.integers(0, 1 << bits, COUNT, dtype=f"u{bits // 8}")
    return np.where(random.random(COUNT) < 0.5, values >> np.uint8(bits // 2), values).astype(values.dtype)


def numbers(bits: np.ndarray, type_name: str) -> list[int]:
    return bits.view(f"{'i' if type_name[0] == 's' else 'u'}{bits.itemsize}").tolist()


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("result", INTEGERS)
def test_integers_wrap_or_saturate(seed: int, source: str, result: str) -> None:
    bits = random_integers(np.random.default_rng(seed), source)
    low, high = limits(result)
    got = evaluate(f"cvt.{result}.{source} %r, %a;", result, a=(source, bits))
    assert got.tolist() == [value & ((1 << (8 * size_of(result))) - 1) for value in numbers(bits, source)]
    saturated = evaluate(f"cvt.sat.{result}.{source} %r, %a;", result, a=(source, bits))
    assert numbers(saturated, result) == [min(max(value, low), high) for value in numbers(bits, source)]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("result", FLOATS)
def test_integers_to_floats(seed: int, source: str, result: str, mode: str) -> None:
    bits = random_integers(np.random.default_rng(seed), source)
    got = evaluate(f"cvt.{mode}.{result}.{source} %r, %a;", result, a=(source, bits))
    wanted = [rounded(Fraction(value), result, mode) if value else 0.0 for value in numbers(bits, source)]
    assert same_floats(got, wanted, result).all()


@pytest.mark.parametrize("mode", TO_INTEGER)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("result", INTEGERS)
def test_floats_to_integers(seed: int, source: str, result: str, mode: str) -> None:
    random = np.random.default_rng(seed)
    bits = random_floats(random, source, COUNT)
    near = random.normal(0, 200, COUNT // 2).astype(f"f{size_of(source)}")
    bits[: COUNT // 2] = np.where(random.random(COUNT // 2) < 0.5, near, np.rint(near) + near.dtype.type(0.5)).view(
        bits.dtype
    )
    got = evaluate(f"cvt.{mode}.{result}.{source} %r, %a;", result, a=(source, bits))
    low, high = limits(result)
    with_64_bits = 8 in (size_of(source), size_of(result))
    for given, value in zip(bits.tolist(), numbers(got, result), strict=True):
        number = exact(given, source)
        if isinstance(number, float) and math.isnan(number):
            invalid = 1 << (8 * size_of(result) - 1) if with_64_bits else 0
            assert value & ((1 << (8 * size_of(result))) - 1) == invalid
        elif isinstance(number, float) and math.isinf(number):
            assert value == (high if number > 0 else low)
        else:
            assert value == min(max(TO_INTEGER[mode](number), low), high), hex(given)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("source", "result"), [("f32", "f16"), ("f64", "f16"), ("f64", "f32")])
def test_floats_narrow(seed: int, source: str, result: str, mode: str) -> None:
    random = np.random.default_rng(seed)
    bits = random_floats(random, source, COUNT)
    middle = random.integers(0, 1 << (8 * size_of(result) - 1), COUNT // 4, dtype=f"u{size_of(result)}")
    with np.errstate(all="ignore"):
        neighbours = np.stack([middle, middle + middle.dtype.type(1)]).view(f"f{size_of(result)}")
        ties = neighbours.astype(f"f{size_of(source)}").mean(0)  # subnormal ones among them
    bits[: COUNT // 4] = ties.view(bits.dtype)
    got = evaluate(f"cvt.{mode}.{result}.{source} %r, %a;", result, a=(source, bits))
    numbers_given = [exact(value, source) for value in bits.tolist()]
    wanted = [rounded(x, result, mode) if isinstance(x, Fraction) else x for x in numbers_given]
    assert same_floats(got, wanted, result).all()


def test_every_half_widens_exactly_and_comes_back(seed: int) -> None:
    halves = np.arange(65536, dtype=np.uint16).reshape(-1, 512)
    for row in halves[np.random.default_rng(seed).permutation(len(halves))[:16]]:
        wide = evaluate("cvt.f32.f16 %r, %a;", "f32", a=("f16", row))
        expected = row.view(np.float16).astype(np.float32)
        assert np.array_equal(wide.view(np.float32), expected, equal_nan=True)
        back = evaluate("cvt.rn.f16.f32 %r, %a;", "f16", a=("f32", wide))
        assert np.array_equal(back[~np.isnan(expected)], row[~np.isnan(expected)])
        assert (back[np.isnan(expected)] == 0x7FFF).all()


def test_large_arrays_of_halves_take_the_way_over_bits(seed: int) -> None:
    """Above a few thousand elements the conversion works on bits: the results are NumPy's."""
    from labkit.sim.arith.half import MANY, to_half

    random = np.random.default_rng(seed)
    plain = random.normal(0, 100, (4, MANY)).astype(np.float32)
    plain[0, :64] = 0
    plain[1, :64] = -0.0
    ties = (
        random.integers(0x0400, 0x7BFE, MANY).astype(np.uint16).view(np.float16).astype(np.float32) * (1 + 2.0**-11)
    ).astype(np.float32)
    odd = plain.copy()
    odd[2, :4] = [np.inf, -np.inf, 1e-6, 70000]
    for x in (plain, ties, odd, -ties):
        with np.errstate(all="ignore"):
            assert np.array_equal(to_half(x), x.astype(np.float16).view(np.uint16))
    odd[3, 5] = np.nan
    with np.errstate(all="ignore"):
        assert to_half(odd)[3, 5] == 0x7FFF


def test_rounding_to_whole_numbers_and_saturation(seed: int) -> None:
    random = np.random.default_rng(seed)
    x = np.concatenate([random.normal(0, 3, COUNT - 4), [0.5, 1.5, -0.25, np.nan]]).astype(np.float32)
    given = ("f32", x.view(np.uint32))
    for mode, function in {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.items():
        got = evaluate(f"cvt.{mode}.f32.f32 %r, %a;", "f32", a=given).view(np.float32)
        assert np.array_equal(got, function(x), equal_nan=True)
    saturated = evaluate("cvt.sat.f32.f32 %r, %a;", "f32", a=given).view(np.float32)
    assert np.array_equal(saturated, np.nan_to_num(np.clip(x, 0, 1)))


def test_a_half_in_the_lower_part_of_a_wider_register(seed: int) -> None:
    """cvt may read a wider register; what is known of the pair in it must not be taken for the half."""
    halves = np.random.default_rng(seed).normal(size=2 * COUNT).astype(np.float16)
    pairs = ("f16x2", halves.view(np.uint32))
    got = evaluate(".reg .b32 %s; add.f16x2 %s, %a, %a; cvt.f32.f16 %r, %s;", "f32", a=pairs)
    assert np.array_equal(got.view(np.float32), 2 * halves[::2].astype(np.float32))


def test_halves_are_the_same_whether_read_as_numbers_or_as_bits(seed: int) -> None:
    """A chain of half operations whose results are unpacked, overwritten, chosen under a predicate and stored."""
    random = np.random.default_rng(seed)
    a, b = (random.normal(size=2 * COUNT).astype(np.float16) for _ in range(2))
    body = """.reg .b32 %s, %t; .reg .b16 %lo, %hi; .reg .pred %p;
    mul.rn.f16x2 %s, %a, %b; mov.b32 {%lo, %hi}, %s; add.rn.f16 %hi, %hi, %lo; add.rn.f16x2 %s, %s, %s;
    setp.lt.f16 %p, %lo, %hi; mov.b32 %t, {%hi, %lo}; @%p sub.rn.f16x2 %s, %s, %t; xor.b32 %r, %s, 0x80008000;"""
    got = evaluate(body, "b32", a=("f16x2", a.view(np.uint32)), b=("f16x2", b.view(np.uint32))).view(np.float16)
    product = (a * b).reshape(-1, 2)
    low, high = product[:, 0], product[:, 1] + product[:, 0]
    changed = 2 * product - np.stack([high, low], 1)
    assert np.array_equal(got.reshape(-1, 2), -np.where((low < high)[:, None], changed, 2 * product))

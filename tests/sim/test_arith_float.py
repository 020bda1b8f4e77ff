"""Float and half instructions against exact rational arithmetic, rounded once; signs of zero and NaN included."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from helpers.ptx_snippets import evaluate, exact, random_floats, rounded, same_floats

COUNT = 320
MODES = ("rn", "rz", "rm", "rp")
Number = Fraction | float


def check(
    seed: int, instruction: str, type_name: str, mode: str, oracle: Callable[..., Number], operands: int
) -> np.ndarray:
    """Compare an instruction with the oracle's exact result, rounded; returns the bits that the simulator gave."""
    random = np.random.default_rng(seed)
    drawn = [random_floats(random, type_name, COUNT) for _ in range(operands)]
    names = "abc"[:operands]
    registers = ", ".join("%" + name for name in names)
    given = {name: (type_name, bits) for name, bits in zip(names, drawn, strict=True)}
    got = evaluate(f"{instruction} %r, {registers};", type_name, **given)
    wanted = []
    for row in zip(*(bits.tolist() for bits in drawn), strict=True):
        value = oracle(*(exact(bits, type_name) for bits in row))
        wanted.append(rounded(value, type_name, mode) if isinstance(value, Fraction) else value)
    wrong = np.flatnonzero(~same_floats(got, wanted, type_name))
    details = [([hex(int(bits[i])) for bits in drawn], wanted[i], hex(int(got[i]))) for i in wrong[:4]]
    assert not len(wrong), f"{instruction}: {len(wrong)} wrong, (operands, wanted, got) {details}"
    return got


def product(a: Number, b: Number) -> Number:
    return a * b if isinstance(a, Fraction) and isinstance(b, Fraction) else float_of(a) * float_of(b)


def total(a: Number, b: Number, mode: str) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a + b or (-0.0 if mode == "rm" else 0.0)
    if float_of(a) == 0 == float_of(b) and math.copysign(1, float_of(a)) != math.copysign(1, float_of(b)):
        return -0.0 if mode == "rm" else 0.0
    if isinstance(a, Fraction) or isinstance(b, Fraction):
        number, other = (a, b) if isinstance(a, Fraction) else (b, a)
        return number if other == 0 else float_of(other)
    return a + b


def float_of(value: Number) -> float:
    """A float with the sign and kind of a number: the size of a finite one does not matter here."""
    return (1.0 if value > 0 else -1.0) if isinstance(value, Fraction) else value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("type_name", ["f32", "f64"])
def test_sum_difference_product(seed: int, type_name: str, mode: str) -> None:
    check(seed, f"add.{mode}.{type_name}", type_name, mode, lambda a, b: total(a, b, mode), 2)
    check(seed, f"sub.{mode}.{type_name}", type_name, mode, lambda a, b: total(a, -b, mode), 2)
    check(seed, f"mul.{mode}.{type_name}", type_name, mode, product, 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("type_name", ["f32", "f64"])
def test_fused_multiply_add_rounds_once(seed: int, type_name: str, mode: str) -> None:
    check(seed, f"fma.{mode}.{type_name}", type_name, mode, lambda a, b, c: total(product(a, b), c, mode), 3)


def test_f32_fma_where_rounding_twice_goes_wrong() -> None:
    """A speck below half a unit above an odd number: float64 loses the speck, and its tie would go up to even."""
    a = np.full(32, 1 + 2.0**-23, np.float32)
    b = np.full(32, 2.0**-24 * (1 - 2.0**-23), np.float32)
    c = np.full(32, 1 + 2.0**-23, np.float32)
    given = {name: ("f32", x.view(np.uint32)) for name, x in zip("abc", (a, b, c), strict=True)}
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (twice == np.float32(1 + 2.0**-22)).all()
    assert (evaluate("fma.rn.f32 %r, %a, %b, %c;", "f32", **given).view(np.float32) == c).all()


def test_f32_fma_near_ties(seed: int) -> None:
    """Products that end a hair beside half a unit of c: the sum in float64 looks like a tie and is none."""
    random = np.random.default_rng(seed)
    c = (random.integers(2**23, 2**24, COUNT)).astype(np.float32)
    a = np.where(random.random(COUNT) < 0.5, 1, -1) * (1 + 2.0**-23 * random.integers(-2, 3, COUNT))
    b = np.full(COUNT, 0.5)
    scale = 2.0 ** random.integers(0, 30, COUNT)
    operands = [(x.astype(np.float32)) for x in (a, b * scale, c * scale.astype(np.float32))]
    bits = [("f32", x.view(np.uint32)) for x in operands]
    got = evaluate("fma.rn.f32 %r, %a, %b, %c;", "f32", a=bits[0], b=bits[1], c=bits[2])
    rows = zip(*(x.tolist() for x in operands), strict=True)
    wanted = [rounded(Fraction(x) * Fraction(y) + Fraction(z), "f32", "rn") for x, y, z in rows]
    assert same_floats(got, wanted, "f32").all()


def test_fast_fma_is_a_product_and_a_sum(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b, c = (random.normal(size=COUNT).astype(np.float32) for _ in range(3))
    given = {name: ("f32", x.view(np.uint32)) for name, x in zip("abc", (a, b, c), strict=True)}
    got = evaluate("fma.rn.f32 %r, %a, %b, %c;", "f32", exact_fma=False, **given)
    assert np.array_equal(got.view(np.float32), a * b + c)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("type_name", ["f32", "f64"])
def test_quotient_and_root(seed: int, type_name: str, mode: str) -> None:
    def quotient(a: Number, b: Number) -> Number:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a / b
        x, y = float_of(a), float_of(b)
        if math.isnan(x) or math.isnan(y) or x == 0 == y or abs(x) == math.inf == abs(y):
            return math.nan
        size = math.inf if y == 0 or abs(x) == math.inf else 0.0
        return math.copysign(size, math.copysign(1, x) * math.copysign(1, y))

    check(seed, f"div.{mode}.{type_name}", type_name, mode, quotient, 2)
    check(seed, f"rcp.{mode}.{type_name}", type_name, mode, lambda a: quotient(Fraction(1), a), 1)


@pytest.mark.parametrize("type_name", ["f32", "f64"])
def test_roots_lie_on_the_right_side(seed: int, type_name: str) -> None:
    """The square of the rounded root, and of its neighbours, encloses the operand as the mode says."""
    random = np.random.default_rng(seed)
    bits = random_floats(random, type_name, COUNT)
    kind = np.dtype(np.float32 if type_name == "f32" else np.float64)
    x = np.abs(bits.view(kind))
    x = np.where(np.isfinite(x) & (x > 0), x, kind.type(2))
    roots = {
        mode: evaluate(f"sqrt.{mode}.{type_name} %r, %a;", type_name, a=(type_name, x.view(bits.dtype))).view(kind)
        for mode in MODES
    }
    for i, value in enumerate(x.tolist()):
        down, up = Fraction(float(roots["rm"][i])), Fraction(float(roots["rp"][i]))
        assert down**2 <= Fraction(value) <= up**2
        assert up == down or float(np.nextafter(roots["rm"][i], kind.type(np.inf))) == float(up)
    assert np.array_equal(roots["rz"], roots["rm"])
    assert np.array_equal(roots["rn"], np.sqrt(x))


@pytest.mark.parametrize("type_name", ["f32", "f64"])
@pytest.mark.parametrize("opcode", ["min", "max"])
def test_extrema_prefer_numbers_and_order_zeros(seed: int, opcode: str, type_name: str) -> None:
    def extremum(a: Number, b: Number) -> Number:
        if math.isnan(float_of(a)) or math.isnan(float_of(b)):
            return b if math.isnan(float_of(a)) else a
        key = lambda x: (x, math.copysign(1, float_of(x)))  # noqa: E731
        return min(a, b, key=key) if opcode == "min" else max(a, b, key=key)

    check(seed, f"{opcode}.{type_name}", type_name, "rn", extremum, 2)


def test_flushing_and_saturation(seed: int) -> None:
    smallest = Fraction(2) ** -126

    def flushed(value: Number) -> Number:
        tiny = isinstance(value, Fraction) and abs(value) < smallest
        return math.copysign(0.0, value) if tiny else value

    def saturated(value: Number) -> Number:
        if not isinstance(value, Fraction):
            return 1.0 if value == math.inf else 0.0
        return min(max(value, Fraction(0)), Fraction(1)) or 0.0

    def sum_of_flushed(a: Number, b: Number) -> Number:
        return flushed(total(flushed(a), flushed(b), "rn"))

    check(seed, "add.rn.ftz.f32", "f32", "rn", sum_of_flushed, 2)
    check(seed, "mul.rn.sat.f32", "f32", "rn", lambda a, b: saturated(product(a, b)), 2)


@pytest.mark.parametrize("opcode", ["add", "sub", "mul"])
def test_halves_round_once(seed: int, opcode: str) -> None:
    def operation(a: Number, b: Number) -> Number:
        if opcode == "mul":
            return product(a, b)
        return total(a, b if opcode == "add" else -b, "rn")

    check(seed, f"{opcode}.rn.f16", "f16", "rn", operation, 2)


def test_half_fma_rounds_once(seed: int) -> None:
    check(seed, "fma.rn.f16", "f16", "rn", lambda a, b, c: total(product(a, b), c, "rn"), 3)


@pytest.mark.parametrize("opcode", ["add", "mul", "fma"])
def test_pairs_of_halves_are_two_halves(seed: int, opcode: str) -> None:
    random = np.random.default_rng(seed)
    count = 3 if opcode == "fma" else 2
    halves = [random_floats(random, "f16", COUNT) for _ in range(count)]
    registers = ", ".join("%" + name for name in "abc"[:count])
    single = {name: ("f16", bits) for name, bits in zip("abc", halves, strict=False)}
    pairs = {name: ("f16x2", bits.view(np.uint32)) for name, bits in zip("abc", halves, strict=False)}
    one = evaluate(f"{opcode}.rn.f16 %r, {registers};", "f16", **single)
    two = evaluate(f"{opcode}.rn.f16x2 %r, {registers};", "f16x2", **pairs)
    assert np.array_equal(two.view(np.uint16), one)


@pytest.mark.parametrize(("low", "high"), [(0x6400, 0x6400), (0x3C01, 0xB800)])
def test_half_operation_with_constants(seed: int, low: int, high: int) -> None:
    """Constants lead to a table look-up (both halves equal) or not; the result is that of registers."""
    random = np.random.default_rng(seed)
    a = random_floats(random, "f16", 2 * COUNT).view(np.uint32)
    constant = high << 16 | low
    registers = np.full(COUNT, constant, np.uint32)
    body = "fma.rn.f16x2 %r, %a, {}, {};"
    with_constants = evaluate(body.format(constant, constant), "f16x2", a=("f16x2", a))
    plain = evaluate(body.format("%b", "%b"), "f16x2", a=("f16x2", a), b=("f16x2", registers))
    assert np.array_equal(with_constants, plain)


def test_approximations_are_close(seed: int) -> None:
    """Within the documented units in the last place of the exact function."""
    random = np.random.default_rng(seed)
    x = random.uniform(0.01, 30, COUNT).astype(np.float32)
    exact_x = x.astype(np.float64)
    functions = {
        "ex2.approx.f32": np.exp2(exact_x),
        "lg2.approx.f32": np.log2(exact_x),
        "rsqrt.approx.f32": 1 / np.sqrt(exact_x),
        "rcp.approx.f32": 1 / exact_x,
        "sqrt.approx.f32": np.sqrt(exact_x),
        "tanh.approx.f32": np.tanh(exact_x),
    }
    for name, wanted in functions.items():
        got = evaluate(f"{name} %r, %a;", "f32", a=("f32", x.view(np.uint32))).view(np.float32)
        unit = np.spacing(np.abs(wanted).astype(np.float32))
        assert (np.abs(got - wanted) <= 2 * unit + 1e-7 * (name[0] == "l")).all(), name

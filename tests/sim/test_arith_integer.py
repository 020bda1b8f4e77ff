"""Integer instructions against Python's integers, over random operands and edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.ptx_snippets import evaluate, size_of

COUNT = 256
Oracle = Callable[..., int]


def operands(random: np.random.Generator, type_name: str) -> np.ndarray:
    """Half edges, half random numbers of all lengths."""
    bits = 8 * size_of(type_name)
    values = random.integers(0, 1 << bits, COUNT, dtype=f"u{bits // 8}")
    values >>= random.integers(0, bits, COUNT).astype(values.dtype)
    edges = np.array([0, 1, 2, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << bits) - 1, 31, 32], values.dtype)
    return np.where(random.random(COUNT) < 0.4, random.choice(edges, COUNT), values)


def as_numbers(bits: np.ndarray, type_name: str) -> list[int]:
    return bits.view(f"{'i' if type_name[0] == 's' else 'u'}{bits.itemsize}").tolist()


def check(seed: int, instruction: str, result: str, types: str, oracle: Oracle) -> None:
    """Run ``instruction`` with "{a}, {b}" in place of registers; compare its low bits with the oracle's."""
    random = np.random.default_rng(seed)
    names = "abcd"[: len(types.split())]
    drawn = {name: (type_name, operands(random, type_name)) for name, type_name in zip(names, types.split())}  # noqa: B905
    got = evaluate(f"{instruction} %r, {', '.join('%' + name for name in names)};", result, **drawn)
    columns = [as_numbers(bits, type_name) for type_name, bits in drawn.values()]
    mask = (1 << (8 * size_of(result))) - 1
    wanted = [oracle(*row) & mask for row in zip(*columns, strict=True)]
    wrong = [(row, w, g) for row, w, g in zip(zip(*columns), wanted, got.tolist()) if w != g]  # noqa: B905
    assert not wrong, f"{instruction}: (operands, wanted, got) {wrong[:5]}"


def truncated_division(a: int, b: int) -> tuple[int, int]:
    if b == 0:
        return -1, -1
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_arithmetic_wraps_around(seed: int, type_name: str) -> None:
    two = f"{type_name} {type_name}"
    check(seed, f"add.{type_name}", type_name, two, lambda a, b: a + b)
    check(seed, f"sub.{type_name}", type_name, two, lambda a, b: a - b)
    check(seed, f"mul.lo.{type_name}", type_name, two, lambda a, b: a * b)
    check(seed, f"min.{type_name}", type_name, two, min)
    check(seed, f"max.{type_name}", type_name, two, max)
    check(seed, f"mul.hi.{type_name}", type_name, two, lambda a, b: (a * b) >> (8 * size_of(type_name)))
    check(seed, f"div.{type_name}", type_name, two, lambda a, b: truncated_division(a, b)[0])
    check(seed, f"rem.{type_name}", type_name, two, lambda a, b: truncated_division(a, b)[1])
    check(seed, f"mad.lo.{type_name}", type_name, f"{two} {type_name}", lambda a, b, c: a * b + c)
    check(seed, f"sad.{type_name}", type_name, f"{two} {type_name}", lambda a, b, c: abs(a - b) + c)


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32"])
def test_wide_products_keep_all_bits(seed: int, type_name: str) -> None:
    wide = f"{type_name[0]}{16 * size_of(type_name)}"
    check(seed, f"mul.wide.{type_name}", wide, f"{type_name} {type_name}", lambda a, b: a * b)
    check(seed, f"mad.wide.{type_name}", wide, f"{type_name} {type_name} {wide}", lambda a, b, c: a * b + c)


@pytest.mark.parametrize("type_name", ["s16", "s32", "s64"])
def test_signs(seed: int, type_name: str) -> None:
    check(seed, f"neg.{type_name}", type_name, type_name, lambda a: -a)
    check(seed, f"abs.{type_name}", type_name, type_name, abs)


def test_saturation(seed: int) -> None:
    low, high = -(2**31), 2**31 - 1
    check(seed, "add.sat.s32", "s32", "s32 s32", lambda a, b: clamp(a + b, low, high))
    check(seed, "sub.sat.s32", "s32", "s32 s32", lambda a, b: clamp(a - b, low, high))
    check(seed, "mad.hi.sat.s32", "s32", "s32 s32 s32", lambda a, b, c: clamp(((a * b) >> 32) + c, low, high))


@pytest.mark.parametrize(("opcode", "sign"), [("add", 1), ("sub", -1)])
def test_carry_chains_make_longer_integers(seed: int, opcode: str, sign: int) -> None:
    """Two 64-bit numbers in three steps of the chain: both halves and the carry out."""
    random = np.random.default_rng(seed)
    drawn = {name: ("u32", operands(random, "u32")) for name in "abcd"}
    low = f"{opcode}.cc.u32 %l, %a, %c;"
    for part, shift in (("l", 0), ("h", 32), ("o", 64)):
        body = (
            f""".reg .b32 %l, %h, %o; {low} {opcode}c.cc.u32 %h, %b, %d; {opcode}c.u32 %o, 0, 0; mov.b32 %r, %{part};"""
        )
        got = evaluate(body, "u32", **drawn)
        rows = zip(*(bits.tolist() for _, bits in drawn.values()), strict=True)
        wanted = [(((a | b << 32) + sign * (c | d << 32)) >> shift) & 0xFFFFFFFF for a, b, c, d in rows]
        assert got.tolist() == wanted


def test_madc_carries(seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = {name: ("u32", operands(random, "u32")) for name in "abcd"}
    body = ".reg .b32 %l; mad.lo.cc.u32 %l, %a, %b, %c; madc.hi.u32 %r, %a, %b, %d;"
    rows = zip(*(bits.tolist() for _, bits in drawn.values()), strict=True)
    wanted = [((a * b + (c | d << 32)) >> 32) & 0xFFFFFFFF for a, b, c, d in rows]
    assert evaluate(body, "u32", **drawn).tolist() == wanted


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_beyond_the_width(seed: int, bits: int) -> None:
    check(seed, f"shl.b{bits}", f"u{bits}", f"u{bits} u32", lambda a, n: a << min(n, bits))
    check(seed, f"shr.u{bits}", f"u{bits}", f"u{bits} u32", lambda a, n: a >> min(n, bits))
    check(seed, f"shr.s{bits}", f"s{bits}", f"s{bits} u32", lambda a, n: a >> min(n, bits))


@pytest.mark.parametrize(("mode", "limit"), [("wrap", lambda n: n % 32), ("clamp", lambda n: min(n, 32))])
def test_funnel_shifts(seed: int, mode: str, limit: Callable[[int], int]) -> None:
    check(seed, f"shf.l.{mode}.b32", "u32", "u32 u32 u32", lambda a, b, n: ((b << 32 | a) << limit(n)) >> 32)
    check(seed, f"shf.r.{mode}.b32", "u32", "u32 u32 u32", lambda a, b, n: (b << 32 | a) >> limit(n))


def test_all_three_input_functions(seed: int) -> None:
    """Every truth table, bit by bit."""
    random = np.random.default_rng(seed)
    a, b, c = (random.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(3))
    for table in range(256):
        got = evaluate(f"lop3.b32 %r, %a, %b, %c, {table};", "u32", a=("b32", a), b=("b32", b), c=("b32", c))
        wanted = np.zeros_like(a)
        for row in range(8):
            picks = [x if row >> (2 - position) & 1 else ~x for position, x in enumerate((a, b, c))]
            if table >> row & 1:
                wanted |= picks[0] & picks[1] & picks[2]
        assert np.array_equal(got, wanted), f"table {table:#x}"


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_counts_and_positions(seed: int, bits: int) -> None:
    unsigned, signed = f"u{bits}", f"s{bits}"
    check(seed, f"popc.b{bits}", "u32", unsigned, lambda a: a.bit_count())
    check(seed, f"clz.b{bits}", "u32", unsigned, lambda a: bits - a.bit_length())
    check(seed, f"brev.b{bits}", unsigned, unsigned, lambda a: int(f"{a:0{bits}b}"[::-1], 2))
    check(seed, f"bfind.{unsigned}", "u32", unsigned, lambda a: a.bit_length() - 1)
    check(seed, f"bfind.{signed}", "u32", signed, lambda a: (a if a >= 0 else ~a).bit_length() - 1)
    check(seed, f"bfind.shiftamt.{unsigned}", "u32", unsigned, lambda a: bits - a.bit_length() if a else -1)


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_fields(seed: int, bits: int) -> None:
    def extract(a: int, position: int, length: int, signed: bool) -> int:
        position, length = position & 255, length & 255
        field = ((a & ((1 << bits) - 1)) >> position) & ((1 << length) - 1)
        top = min(position + length - 1, bits - 1)
        if signed and length and (a >> top) & 1:
            return field | -(1 << max(min(length, bits - position), 0))
        return field

    def insert(a: int, b: int, position: int, length: int) -> int:
        position, length = position & 255, length & 255
        mask = ((1 << length) - 1) << position
        return (b & ~mask) | ((a << position) & mask)

    check(seed, f"bfe.u{bits}", f"u{bits}", f"u{bits} u32 u32", lambda a, p, n: extract(a, p, n, False))
    check(seed, f"bfe.s{bits}", f"s{bits}", f"s{bits} u32 u32", lambda a, p, n: extract(a, p, n, True))
    check(seed, f"bfi.b{bits}", f"u{bits}", f"u{bits} u{bits} u32 u32", insert)


def test_byte_permutation(seed: int) -> None:
    def permute(a: int, b: int, selector: int) -> int:
        data, result = (b << 32 | a).to_bytes(8, "little"), 0
        for position in range(4):
            nibble = selector >> (4 * position) & 15
            byte = data[nibble & 7]
            result |= (byte if nibble < 8 else 255 * (byte >> 7)) << (8 * position)
        return result

    check(seed, "prmt.b32", "u32", "u32 u32 u32", permute)


def test_dot_products(seed: int) -> None:
    def parts(word: int, bits: int, signed: bool) -> list[int]:
        values = [word >> start & ((1 << bits) - 1) for start in range(0, 32, bits)]
        return [v - (1 << bits) if signed and v >> (bits - 1) else v for v in values]

    for a_type, b_type in (("u32", "u32"), ("s32", "s32"), ("s32", "u32"), ("u32", "s32")):
        signs = a_type == "s32", b_type == "s32"
        result = "s32" if any(signs) else "u32"

        def dp4a(a: int, b: int, c: int, signs: tuple[bool, bool] = signs) -> int:
            return c + sum(x * y for x, y in zip(parts(a, 8, signs[0]), parts(b, 8, signs[1]), strict=True))

        def dp2a(a: int, b: int, c: int, signs: tuple[bool, bool] = signs) -> int:
            return c + sum(x * y for x, y in zip(parts(a, 16, signs[0]), parts(b, 8, signs[1])[2:], strict=True))

        check(seed, f"dp4a.{a_type}.{b_type}", result, f"u32 u32 {result}", dp4a)
        check(seed, f"dp2a.hi.{a_type}.{b_type}", result, f"u32 u32 {result}", dp2a)


def test_nth_set_bit(seed: int) -> None:
    def find(mask: int, base: int, offset: int) -> int:
        offset -= (offset >> 31) << 32
        if offset == 0:
            return base if mask >> base & 1 else -1
        order = range(base, 32) if offset > 0 else range(base, -1, -1)
        hits = [position for position in order if mask >> position & 1]
        return hits[abs(offset) - 1] if len(hits) >= abs(offset) else -1

    random = np.random.default_rng(seed)
    mask = random.integers(0, 2**32, COUNT, dtype=np.uint32)
    base = random.integers(0, 32, COUNT, dtype=np.uint32)
    offset = random.integers(-6, 7, COUNT).astype(np.int32).view(np.uint32)
    got = evaluate("fns.b32 %r, %a, %b, %c;", "u32", a=("u32", mask), b=("u32", base), c=("u32", offset))
    rows = zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)
    assert got.tolist() == [find(*row) & 0xFFFFFFFF for row in rows]


def test_unpacking_and_packing_are_inverse(seed: int) -> None:
    random = np.random.default_rng(seed)
    a = random.integers(0, 2**64, COUNT, dtype=np.uint64)
    body = ".reg .b16 %h<4>; .reg .b32 %w<2>; mov.b64 {%h0, %h1, %h2, %h3}, %a; mov.b32 %w0, {%h3, %h2};"
    got = evaluate(body + "mov.b32 %w1, {%h1, %h0}; mov.b64 %r, {%w0, %w1};", "b64", a=("b64", a))
    assert np.array_equal(got.view(np.uint16).reshape(-1, 4), a.view(np.uint16).reshape(-1, 4)[:, ::-1])


def test_small_loads_extend_by_their_sign(seed: int) -> None:
    a = np.random.default_rng(seed).integers(0, 256, COUNT).astype(np.uint8)
    assert evaluate("cvt.s32.s8 %r, %a;", "s32", a=("s8", a)).view(np.int32).tolist() == a.view(np.int8).tolist()
    assert evaluate("cvt.u32.u16 %r, %a;", "u32", a=("u8", a)).tolist() == a.tolist()
    signed = evaluate("cvt.s32.s16 %r, %a;", "s32", a=("s8", a))
    assert signed.view(np.int32).tolist() == a.view(np.int8).tolist()  # the load itself has extended it

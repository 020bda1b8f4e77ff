"""One PTX instruction, or a few, run on the simulator over arrays of operands; and exact references in rationals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from labkit.sim.load import load_ptx
from labkit.sim.machine import launch
from labkit.sim.options import Options
from labkit.sim.program import Kernel

HEADER = ".version 8.3\n.target sm_70\n.address_size 64\n"
SIZES = {"pred": 1, "f16": 2, "f16x2": 4}
FORMATS = {"f16": (11, -14, 15), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}  # precision, exponents


def size_of(type_name: str) -> int:
    return SIZES.get(type_name) or int(type_name.lstrip("busf")) // 8


def evaluate(body: str, result: str, exact_fma: bool = True, **operands: tuple[str, np.ndarray]) -> np.ndarray:
    """The bits of register %r after ``body``; operands are registers %<name> of a type, with one value per thread."""
    kernel = load_ptx(snippet(body, result, {k: t for k, (t, _) in operands.items()}), exact_fma).kernels["snippet"]
    values = [np.ascontiguousarray(array) for _, array in operands.values()]
    count = len(values[0])
    output = np.zeros(count, f"u{size_of(result)}")
    launch(kernel, 1, count, [*values, output], options=Options(exact_fma=exact_fma))
    return output


def snippet(body: str, result: str, types: dict[str, str]) -> str:
    """A kernel that loads its operands, runs the body and stores %r."""
    names = list(types)
    parameters = ", ".join(f".param .u64 p_{name}" for name in [*names, "out"])
    lines = [".reg .b64 %at; .reg .b32 %thread; .reg .b16 %byte; mov.u32 %thread, %tid.x;"]
    for name, type_name in types.items():
        lines.append(f".reg .{declared(type_name)} %{name}; ld.param.u64 %at, [p_{name}];")
        lines.append(f"mad.wide.u32 %at, %thread, {size_of(type_name)}, %at;")
        loaded = {"f16": "b16", "f16x2": "b32"}.get(type_name, type_name)
        lines.append(f"ld.global.{loaded} %{name}, [%at];")
    stored = {"f16": "b16", "f16x2": "b32", "pred": "u8"}.get(result, result)
    source = "%r" if result != "pred" else "%byte"
    widen = "" if result != "pred" else "selp.u16 %byte, 1, 0, %r;\n"
    lines.append(f".reg .{declared(result)} %r;\n{body}\n{widen}ld.param.u64 %at, [p_out];")
    lines.append(f"mad.wide.u32 %at, %thread, {size_of(result)}, %at; st.global.{stored} [%at], {source}; ret;")
    return f"{HEADER}.visible .entry snippet({parameters}) {{\n" + "\n".join(lines) + "\n}\n"


def declared(type_name: str) -> str:
    """The type of the register that holds a value."""
    return {"u8": "b16", "s8": "b16", "b8": "b16", "f16": "b16", "f16x2": "b32"}.get(type_name, type_name)


def kernel_of(text: str, **settings: Any) -> Kernel:
    """The kernel "k" of a PTX text without its header."""
    return load_ptx(HEADER + text, **settings).kernels["k"]


def random_floats(random: np.random.Generator, type_name: str, count: int) -> np.ndarray:
    """Bit patterns of floats: random ones of all exponents, with zeros, subnormals, infinities and NaN among them."""
    size = size_of(type_name)
    bits = random.integers(0, 1 << (8 * size), count, dtype=f"u{size}")
    precision, _, largest = FORMATS[type_name]
    one = largest << (precision - 1)
    infinity = (2 * largest + 1) << (precision - 1)
    sign = 1 << (8 * size - 1)
    edges = [0, 1, (1 << (precision - 1)) - 1, 1 << (precision - 1), one, one + 1, infinity - 1, infinity, infinity + 1]
    values = np.array([edge | extra for edge in edges for extra in (0, sign)], f"u{size}")
    bits[random.permutation(count)[: count // 2]] = random.choice(values, count // 2)
    moderate = random.normal(size=count // 4).astype(f"f{size}").view(bits.dtype)
    bits[: count // 4] = moderate
    return bits


def exact(bits: int, type_name: str) -> Fraction | float:
    """The number that bits stand for: a Fraction, or a Python float for zeros, infinities and NaN."""
    size = size_of(type_name)
    value = float(np.array([bits], f"u{size}").view(f"f{size}")[0])
    return Fraction(value) if value != 0 and math.isfinite(value) else value


def rounded(value: Fraction, type_name: str, mode: str) -> float:
    """A non-zero rational rounded to a format in a mode, gradual underflow and overflow included."""
    precision, smallest, largest = FORMATS[type_name]
    size = abs(value)
    exponent = max(math.floor(_log2(size)), smallest)
    unit = Fraction(2) ** (exponent - precision + 1)
    steps = math.floor(size / unit)
    rest = size / unit - steps
    away = {"rz": False, "rm": value < 0, "rp": value > 0}.get(mode)
    up = (rest, steps % 2) > (Fraction(1, 2), 0) if away is None else away and rest > 0
    result = (steps + up) * unit
    limit = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** largest
    sign = -1.0 if value < 0 else 1.0
    if result > limit:
        return sign * (math.inf if away in (None, True) else float(limit))
    return sign * float(result)


def _log2(size: Fraction) -> int:
    """The exponent of a positive rational: 2**e <= size < 2**(e+1)."""
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if Fraction(2) ** guess <= size else guess - 1


def same_floats(bits: np.ndarray, wanted: list[float], type_name: str) -> np.ndarray:
    """True where the bits stand for the wanted number, signs of zero included; any NaN equals any other."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = bits.view(f"f{size_of(type_name)}").astype(np.float64)
    expected = np.array(wanted, np.float64)
    equal = (values == expected) & (np.signbit(values) == np.signbit(expected))
    return equal | (np.isnan(values) & np.isnan(expected))

"""The words by which `labkit sim --arg` describes a kernel's arguments.

f32:1024=random     an array of 1,024 floats
i32:16x64=arange    0, 1, 2, ...
f16:512             zeros
f32:8=1,2,3..       1, 2, 3, 1, 2, 3, 1, 2
out f32:1024        an array that the kernel must fill completely
@weights.npy        an array from a NumPy file
42   0.5   null     numbers, a null pointer
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from labkit.errors import ConfigError
from labkit.sim.buffers import Out

TYPES = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "bool": np.bool_,
}
ARRAY = re.compile(r"(?P<type>\w+):(?P<shape>\d+(?:x\d+)*)(?:=(?P<fill>.+))?")
CURE = "Write it as f32:1024=random, i32:16x64=arange, f32:8=1,2,3.., out f32:1024, @file.npy, 42, 0.5 or null."
RANDOM_INTEGERS = 100  # random integers are 0 ... 99: small enough to be counts, large enough to differ
LARGEST = 1 << 32  # elements


def parse_argument(text: str, generator: np.random.Generator) -> Any:
    """One argument: an array, Out(array), a number, or None. Raises ConfigError for what is none of them."""
    words = text.strip()
    if words.startswith("out "):
        array = parse_argument(words[4:], generator)
        if not isinstance(array, np.ndarray):
            raise ConfigError(f"{text!r} is no array.", cure=CURE)
        return Out(array)
    if words.startswith("@"):
        return _from_file(words[1:])
    if words == "null":
        return None
    match = ARRAY.fullmatch(words)
    if match is not None and match["type"] in TYPES:
        return _array(match["type"], match["shape"], match["fill"] or "zeros", text, generator)
    return _number(words, text)


def parse_macro(text: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME alone, which stands for NAME=1. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"{text!r} defines no macro.", cure="Write it as NAME=VALUE.")
    return name, value if equals else "1"


def parse_variable(text: str, generator: np.random.Generator) -> tuple[str, Any]:
    """NAME=VALUE, where VALUE is an array, a number or a file, as for an argument. Raises ConfigError."""
    name, _, value = (part.strip() for part in text.partition("="))
    content = parse_argument(value, generator) if name and value else None
    if content is None or isinstance(content, Out):
        raise ConfigError(f"{text!r} sets no variable.", cure="Write it as NAME=f32:16=arange or NAME=42.")
    return name, content


def random_generator(seed: int) -> np.random.Generator:
    """The source of random arrays. Raises ConfigError for a seed below 0."""
    if seed < 0:
        raise ConfigError(f"The seed is {seed}.", cure="Give a number from 0 on.")
    return np.random.default_rng(seed)


def parse_size(text: str, what: str) -> tuple[int, ...]:
    """X[,Y[,Z]]. Raises ConfigError."""
    if not re.fullmatch(r"\d+(,\d+){0,2}", text):
        raise ConfigError(f"The {what} is {text!r}.", cure="Write it as X, X,Y or X,Y,Z.")
    return tuple(int(part) for part in text.split(","))


def _array(kind: str, shape_text: str, fill: str, text: str, generator: np.random.Generator) -> Any:
    shape = tuple(int(part) for part in shape_text.split("x"))
    size, dtype = math.prod(shape), np.dtype(TYPES[kind])
    if not 0 < size <= LARGEST:
        raise ConfigError(f"{text!r} has {size} elements.", cure="Give between 1 and 2^32.")
    if fill == "random":
        if dtype.kind == "f":
            return generator.uniform(-1, 1, shape).astype(dtype)
        return generator.integers(0, 2 if dtype.kind == "b" else RANDOM_INTEGERS, shape).astype(dtype)
    if fill in ("zeros", "ones"):
        return np.full(shape, fill == "ones", dtype)
    if fill == "arange":
        return np.arange(size).astype(dtype).reshape(shape)
    return _listed(fill, size, dtype, text).reshape(shape)


def _listed(fill: str, size: int, dtype: Any, text: str) -> Any:
    repeated = fill.endswith("..")
    values = [_number(part, text) for part in fill.removesuffix("..").split(",")]
    if len(values) == 1:
        repeated = True
    if not repeated and len(values) != size:
        raise ConfigError(f"{text!r} lists {len(values)} values for {size} elements.", cure="End the list with ..")
    try:
        return np.resize(np.array([_as_element(value, dtype) for value in values], dtype), size)
    except (OverflowError, ValueError) as error:
        raise ConfigError(f"{text!r}: {error}.", cure="Give values of the array's type.") from None


def _as_element(value: int | float, dtype: Any) -> Any:
    if isinstance(value, float) and dtype.kind != "f":
        raise ValueError(f"{value} is no {dtype}")
    if dtype.kind == "b" and value not in (0, 1):
        raise ValueError(f"{value} is no bool")
    with np.errstate(over="ignore"):
        element = dtype.type(value)
    if dtype.kind == "f" and np.isinf(element) and np.isfinite(float(value)):
        raise ValueError(f"{value} is too large for {dtype}")
    return element


def _number(words: str, text: str) -> int | float:
    try:
        return int(words, 0)
    except ValueError:
        try:
            return float(words)
        except ValueError:
            raise ConfigError(f"{text!r} is no argument.", cure=CURE) from None


def _from_file(path: str) -> Any:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", cure="Give a .npy file of plain numbers.") from None
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"{path} holds several arrays.", cure="Give a .npy file, not an .npz.")
    return np.ascontiguousarray(array)

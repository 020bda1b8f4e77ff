"""PTX's fundamental types and the NumPy types that hold them.

A register lives in an array of its *storage* type: unsigned integers, float32, float64 or bool; half-precision numbers
lie in uint16 and uint32 as bits. An instruction looks at a register through its own type, the *view*.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

UNSIGNED = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}  # bytes -> name of the NumPy type in generated code
SIGNED = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


@dataclass(frozen=True)
class PtxType:
    """One of PTX's types.

    kind: "u" unsigned, "s" signed, "b" bits, "f" float, "h" half (one or two in a word), "p" predicate.
    """

    name: str
    kind: str
    size: int  # bytes; a predicate counts as 1

    @property
    def bits(self) -> int:
        return 8 * self.size

    @property
    def view(self) -> str:
        """NumPy type that an instruction of this type computes in."""
        if self.kind == "p":
            return "b1"
        if self.kind == "f":
            return f"f{self.bits}"
        return SIGNED[self.size] if self.kind == "s" else UNSIGNED[self.size]

    @property
    def storage(self) -> str:
        """NumPy type that a register declared with this type is kept in."""
        return self.view if self.kind in "fp" else UNSIGNED[self.size]

    @property
    def signed(self) -> bool:
        return self.kind == "s"

    @property
    def floating(self) -> bool:
        return self.kind in "fh"


TYPES: dict[str, PtxType] = {
    **{f"{kind}{8 * size}": PtxType(f"{kind}{8 * size}", kind, size) for kind in "usb" for size in (1, 2, 4, 8)},
    "f16": PtxType("f16", "h", 2),
    "f16x2": PtxType("f16x2", "h", 4),
    "f32": PtxType("f32", "f", 4),
    "f64": PtxType("f64", "f", 8),
    "pred": PtxType("pred", "p", 1),
}

# The names of NumPy types in generated code. Not one of them is a valid register name there: those start with "_".
NUMPY_TYPES: dict[str, type] = {
    "b1": np.bool_,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f32": np.float32,
    "f64": np.float64,
}


def bits_of(type_: PtxType) -> PtxType:
    """The bit-string type of the same size: what moves, loads and stores copy."""
    return TYPES[f"b{type_.bits}"]


def register_dtype(type_name: str) -> type:
    """NumPy type of the array that holds a register declared as ``.reg .<type_name>``."""
    return NUMPY_TYPES[TYPES[type_name].storage]

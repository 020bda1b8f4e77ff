"""One parameter of a kernel: which tensors and numbers it takes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

import torch

from labkit.device.declaration import Declared

FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}
FLOATS = {"f32": ("f", 3.4028235677973366e38), "f64": ("d", math.inf)}  # the first number that rounds to infinity
# What the elements of a pointer may be. Types that are not here, such as void and vectors, take any tensor.
DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "half": (torch.float16,),
    "__half": (torch.float16,),
    "float": (torch.float32,),
    "double": (torch.float64,),
    "__nv_bfloat16": (torch.bfloat16, torch.uint16, torch.int16),  # NumPy has no bfloat16: bits will do
    "bool": (torch.bool,),
    "signed char": (torch.int8,),
    "int8_t": (torch.int8,),
    "unsigned char": (torch.uint8,),
    "uint8_t": (torch.uint8,),
    "char": (torch.int8, torch.uint8),
    "short": (torch.int16,),
    "int16_t": (torch.int16,),
    "unsigned short": (torch.uint16, torch.int16),
    "uint16_t": (torch.uint16, torch.int16),
    "int": (torch.int32,),
    "int32_t": (torch.int32,),
    "unsigned": (torch.uint32, torch.int32),  # torch computes little with uint32: words of packed bits come as int32
    "unsigned int": (torch.uint32, torch.int32),
    "uint32_t": (torch.uint32, torch.int32),
    "long": (torch.int64,),
    "long long": (torch.int64,),
    "unsigned long": (torch.uint64, torch.int64),
    "unsigned long long": (torch.uint64, torch.int64),
    "uint64_t": (torch.uint64, torch.int64),
    "size_t": (torch.uint64, torch.int64),
    "int64_t": (torch.int64,),
}
UNSIGNED = re.compile(r"unsigned|^u?int\d+_t$|^size_t$|^bool$")
SIGNED = re.compile(r"^(?:signed )?(?:char|short|int|long|long long|long int|long long int|int\d+_t)$")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: its PTX type, and its declaration where the source shows it."""

    index: int
    type: str  # "u64", "f32", ...
    size: int  # bytes
    declared: Declared | None

    @property
    def name(self) -> str:
        known = self.declared is not None and self.declared.name
        return f"argument {self.index} ({known})" if known else f"argument {self.index}"

    @property
    def written_type(self) -> str:
        return self.declared.type if self.declared else self.type

    @cached_property
    def dtypes(self) -> tuple[torch.dtype, ...] | None:
        return DTYPES.get(self.declared.type) if self.declared else None

    @cached_property
    def format(self) -> str:
        return FLOATS[self.type][0] if self.type in FLOATS else FORMATS[self.size]

    @cached_property
    def takes_tensor(self) -> bool:
        """Pointers; and every 64-bit integer of a kernel whose declaration is not to be seen."""
        return self.declared.pointer if self.declared else self.size == 8 and self.type not in FLOATS

    @cached_property
    def constant(self) -> bool:
        """Whether the kernel only reads what it points to."""
        return self.declared is not None and self.declared.constant

    # What the quick path of Signature.values compares with. A kind of number that the parameter does not take has an
    # empty range, and goes the long way to its refusal.

    @cached_property
    def least(self) -> int:
        return self.bounds[0] if self._counts else 1

    @cached_property
    def greatest(self) -> int:
        return self.bounds[1] if self._counts else 0

    @cached_property
    def limit(self) -> float:
        return FLOATS[self.type][1] if self.type in FLOATS else 0.0

    @cached_property
    def mask(self) -> int:
        return (1 << 8 * self.size) - 1

    @property
    def _counts(self) -> bool:
        return self.type not in FLOATS and not (self.declared is not None and self.declared.pointer)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest integer. Where the sign is not known, either reading is allowed."""
        bits = 8 * self.size
        if self.declared and SIGNED.match(self.declared.type):
            return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        if self.declared and UNSIGNED.search(self.declared.type):
            return 0, 1 if self.declared.type == "bool" else (1 << bits) - 1
        return -(1 << (bits - 1)), (1 << bits) - 1

"""What the functions of all blocks of a kernel share: registers, variables, constants, and names in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from labkit.sim.program import Variable
from labkit.sim.types import NUMPY_TYPES, UNSIGNED

UNSIGNED_TYPE = {size: NUMPY_TYPES[name] for size, name in UNSIGNED.items()}


@dataclass
class Constants:
    """Arrays of shape (1, 1) for the constants of a kernel, by the names that generated code calls them."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def name(self, bits: int, view: str) -> str:
        name = f"c_{view}_{bits:x}"
        if name not in self.arrays:
            dtype = np.dtype(NUMPY_TYPES[view])
            raw: np.ndarray = np.array([[bits]], dtype=UNSIGNED_TYPE[dtype.itemsize])
            self.arrays[name] = raw.astype(dtype) if view == "b1" else raw.view(dtype)
            self.arrays[name].flags.writeable = False
        return name

    def halves(self, bits: int, pair: bool) -> str:
        """float32 values of a half, shape (1, 1), or of two, shape (1, 1, 2)."""
        name = f"c_halves_{bits:08x}" if pair else f"c_half_{bits:04x}"
        if name not in self.arrays:
            values = np.array([bits], np.uint32 if pair else np.uint16).view(np.float16).astype(np.float32)
            self.arrays[name] = values.reshape((1, 1, 2) if pair else (1, 1))
            self.arrays[name].flags.writeable = False
        return name


@dataclass
class Scope:
    """What is common to all blocks of a kernel."""

    registers: Mapping[str, str]  # name -> PTX type
    variables: Mapping[str, Variable]  # by name: shared, local, global, const; kernel parameters
    exact_fma: bool
    constants: Constants = field(default_factory=Constants)
    python_names: dict[str, str] = field(default_factory=dict)

    def python_name(self, register: str) -> str:
        """ "%f12" -> "_f12"; the leading underscore keeps it apart from all other names in generated code."""
        name = self.python_names.get(register)
        if name is None:
            name = "_" + re.sub(r"\W", "_", register.removeprefix("%"))
            while name in self.python_names.values():
                name += "_"
            self.python_names[register] = name
        return name

"""The warp-matrix instructions of <mma.h> (nvcuda::wmma), written as what sm_70 runs: plain accesses and mma.m8n8k4.

CUDA leaves open which lane holds which element of a fragment. Here a fragment is what mma.sync.m8n8k4 takes: each of a
warp's four quadpairs (lanes 4 q to 4 q + 3 and the same plus 16) computes an 8 x 8 tile of the result, in four steps of
K = 4, so that nothing moves between lanes. Layouts: PTX manual, "Matrix fragments for mma.m8n8k4".
"""

from __future__ import annotations

import re
from collections.abc import Callable

Step = tuple[str, tuple[str, ...], tuple[str, ...]]  # opcode, modifiers, operands

ADDRESS = re.compile(r"\[\s*([^\]+\s]+)\s*(?:\+\s*(-?\d+))?\s*\]")
SPACES = ("global", "shared")
SIZES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16)}  # M, N, K
HALF, SINGLE = 2, 4  # bytes


def lower(modifiers: tuple[str, ...], operands: tuple[str, ...], new_register: Callable[[str, str], str]) -> list[Step]:
    """The instructions that a wmma instruction stands for.

    modifiers: those after "wmma", such as ("load", "a", "sync", "aligned", "row", "m16n16k16", "global", "f16");
    new_register(name, type) declares one. Raises KeyError or ValueError for shapes and types that sm_70 has not.
    """
    if modifiers[0] == "mma":
        return _multiply(modifiers, operands)
    return _Access(modifiers, operands, new_register).steps()


def _multiply(modifiers: tuple[str, ...], operands: tuple[str, ...]) -> list[Step]:
    """Four mma.m8n8k4; the first adds to C, the others to what the one before has left in D."""
    layout_a, layout_b, shape, d_type, c_type = modifiers[3:8]
    if shape not in SIZES or len(modifiers) > 8:
        raise ValueError("the shape or type")
    d, a, b, c = operands
    a_registers, b_registers = _names(a), _names(b)
    steps: list[Step] = []
    for k in range(4):
        qualifiers = ("sync", "aligned", "m8n8k4", layout_a, layout_b, d_type, "f16", "f16", c_type)
        pair = slice(2 * k, 2 * k + 2)
        steps.append(("mma", qualifiers, (d, _vector(a_registers[pair]), _vector(b_registers[pair]), c)))
        c, c_type = d, d_type
    return steps


class _Access:
    """One wmma.load or wmma.store."""

    def __init__(
        self, modifiers: tuple[str, ...], operands: tuple[str, ...], new_register: Callable[[str, str], str]
    ) -> None:
        self.loads = modifiers[0] == "load"
        self.matrix, self.layout, self.shape, self.type = modifiers[1], modifiers[4], modifiers[5], modifiers[-1]
        self.space = tuple(word for word in modifiers if word in SPACES)
        fragment, address = operands[:2] if self.loads else (operands[1], operands[0])
        match = ADDRESS.fullmatch(address)
        if match is None or self.type not in ("f16", "f32"):
            raise ValueError("the address or type")
        self.registers = _names(fragment)
        self.base, self.offset = match[1], int(match[2] or 0)
        self.stride = operands[2] if len(operands) > 2 else str(self._default_stride())
        self.new_register = new_register
        self.code: list[Step] = []
        self.known: dict[tuple[int, int], str] = {}  # bits of the lane number that are at hand

    def steps(self) -> list[Step]:
        if self.matrix in ("a", "b"):
            self._factor()
        elif self.type == "f16":
            self._half_accumulator()
        else:
            self._single_accumulator()
        return self.code

    def _default_stride(self) -> int:
        m, n, k = SIZES[self.shape]
        rows, columns = {"a": (m, k), "b": (k, n)}.get(self.matrix, (m, n))
        return columns if self.layout == "row" else rows

    def _factor(self) -> None:
        """A by rows, B by columns: a lane has 16 neighbours along K. The other way: 4 neighbours for each of 4 k."""
        tile = self._tile_of_lane(self.matrix == "a")
        along_k = (self.matrix == "a") == (self.layout == "row")
        low, high = self._lane_bits(0, 3), self._lane_bits(4, 1)
        if along_k:
            line = self._sum(self._times(tile, 8), low, self._times(high, 4))
            address = self._address(line, "0", HALF)
            for number in range(0, 8, 4):
                self._move(self.registers[number : number + 4], address, 4 * number)
            return
        within = self._sum(self._times(tile, 8), self._times(high, 4))
        for k in range(4):
            line = self._sum(low, str(4 * k))
            self._move(self.registers[2 * k : 2 * k + 2], self._address(line, within, HALF), 0)

    def _half_accumulator(self) -> None:
        """A lane has a row of its quadpair's tile: 8 neighbours of a row-major matrix."""
        low, high = self._lane_bits(0, 3), self._lane_bits(4, 1)
        row = self._sum(self._times(self._tile_of_lane(True), 8), low, self._times(high, 4))
        column = self._times(self._tile_of_lane(False), 8)
        if self.layout == "row":
            self._move(self.registers, self._address(row, column, HALF), 0)
            return
        for number, register in enumerate(self.registers):
            halves = [self._register(f"half{i}", "b16") for i in range(2)]
            if not self.loads:
                self._emit("mov", ("b32",), _vector(halves), register)
            for i, half in enumerate(halves):
                address = self._address(self._sum(column, str(2 * number + i)), row, HALF)
                self._emit_access((), "b16", half, address, 0)
            if self.loads:
                self._emit("mov", ("b32",), register, _vector(halves))

    def _single_accumulator(self) -> None:
        """Element i of a lane: row (lane & 1) + (i & 2) + 4 (lane >> 4), column (lane & 2) + (i & 4) + (i & 1)."""
        odd, pair, high = self._lane_bits(0, 1), self._lane_bits(0, 2), self._lane_bits(4, 1)
        row = self._sum(self._times(self._tile_of_lane(True), 8), odd, self._times(high, 4))
        column = self._sum(self._times(self._tile_of_lane(False), 8), pair)
        for i in range(0, 8, 2):
            if self.layout == "row":
                address = self._address(self._sum(row, str(i & 2)), self._sum(column, str(i & 4)), SINGLE)
                self._move(self.registers[i : i + 2], address, 0)
                continue
            for j in (i, i + 1):
                line = self._sum(column, str((j & 4) + (j & 1)))
                address = self._address(line, self._sum(row, str(j & 2)), SINGLE)
                self._emit_access((), "f32", self.registers[j], address, 0)

    def _tile_of_lane(self, rows: bool) -> str:
        """Which 8 rows (or columns) of the result the lane's quadpair computes."""
        m, n, _ = SIZES[self.shape]
        tiles = (m if rows else n) // 8
        if tiles == 1:
            return "0"
        if tiles == 4:
            return self._lane_bits(2, 3)
        return self._lane_bits(2 if rows else 3, 1)

    # Small pieces of code

    def _lane_bits(self, shift: int, mask: int) -> str:
        if (shift, mask) in self.known:
            return self.known[shift, mask]
        lane, shifted = self._register("lane", "u32"), self._register("bits", "u32")
        self._emit("mov", ("u32",), lane, "%laneid")
        self._emit("shr", ("u32",), shifted, lane, str(shift))
        self._emit("and", ("b32",), shifted, shifted, str(mask))
        self.known[shift, mask] = shifted
        return shifted

    def _times(self, value: str, factor: int) -> str:
        if value == "0":
            return value
        product = self._register("product", "u32")
        self._emit("mul", ("lo", "u32"), product, value, str(factor))
        return product

    def _sum(self, *terms: str) -> str:
        total, *rest = [term for term in terms if term != "0"] or ["0"]
        for term in rest:
            result = self._register("sum", "u32")
            self._emit("add", ("u32",), result, total, term)
            total = result
        return total

    def _address(self, line: str, within: str, width: int) -> str:
        """Of element ``within`` of a line; lines lie ``stride`` elements apart."""
        element = self._register("element", "u32")
        self._emit("mad", ("lo", "u32"), element, line, self.stride, within)
        address = self._register("address", "u64")
        self._emit("mad", ("wide", "u32"), address, element, str(width), self.base)
        return address

    def _move(self, registers: list[str], address: str, offset: int) -> None:
        """Whole registers to or from neighbouring words."""
        kind = "f32" if self.matrix in ("c", "d") and self.type == "f32" else "b32"
        self._emit_access((f"v{len(registers)}",), kind, _vector(registers), address, offset)

    def _emit_access(self, vector: tuple[str, ...], kind: str, value: str, address: str, offset: int) -> None:
        place = f"[{address}+{self.offset + offset}]"
        modifiers = (*self.space, *vector, kind)
        if self.loads:
            self._emit("ld", modifiers, value, place)
        else:
            self._emit("st", modifiers, place, value)

    def _register(self, name: str, type: str) -> str:
        return self.new_register(f"wmma.{name}", type)

    def _emit(self, opcode: str, modifiers: tuple[str, ...], *operands: str) -> None:
        self.code.append((opcode, modifiers, operands))


def _names(vector: str) -> list[str]:
    return [name.strip() for name in vector.strip("{} ").split(",")]


def _vector(registers: list[str]) -> str:
    return "{" + ", ".join(registers) + "}"

"""Writing the Python function of one block: operands to expressions, results to assignments."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from labkit.errors import PtxError
from labkit.sim.codegen.scope import UNSIGNED_TYPE, Scope
from labkit.sim.parse import immediate_bits
from labkit.sim.program import Instruction
from labkit.sim.types import NUMPY_TYPES, SIGNED, TYPES, UNSIGNED, PtxType

SPECIAL_REGISTERS = {  # PTX name -> attribute of Threads, type
    **{f"%{name}.{axis}": (f"{name}_{axis}", "u32") for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    **{f"%lanemask_{order}": (f"lanemask_{order}", "u32") for order in ("eq", "lt", "le", "gt", "ge")},
    **{f"%{name}": (name, "u32") for name in ("laneid", "warpid", "nwarpid", "smid", "nsmid")},
    **{f"%envreg{number}": (f"environment({number})", "u32") for number in range(32)},
    "%gridid": ("gridid", "u64"),
    "%dynamic_smem_size": ("dynamic_smem_size", "u32"),
    "%total_smem_size": ("total_smem_size", "u32"),
    "%clock": ("clock(32)", "u32"),
    **dict.fromkeys(("%clock64", "%clock_hi"), ("clock(64)", "u64")),
    **dict.fromkeys(("%globaltimer", "%globaltimer_lo", "%globaltimer_hi"), ("globaltimer()", "u64")),
}
CURES = dict.fromkeys(
    ("tex", "tld4", "txq", "suld", "sust", "sured", "suq"),
    "Textures and surfaces are not simulated: read from an array by index.",
)
UPPER_WORDS = ("%clock_hi", "%globaltimer_hi")
SYMBOL = re.compile(r"([$%A-Za-z_][\w$~.]*)(?:\+(-?\w+))?")
TEMPORARY = re.compile(r"h\d+(\[\.\.\., \d\])?")
Handler = Callable[["Emitter", Instruction], None]
HANDLERS: dict[str, Handler] = {}


def emits(*opcodes: str) -> Callable[[Handler], Handler]:
    """Register a function as the writer of some opcodes."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update((opcode, handler) for opcode in opcodes)
        return handler

    return register


class Emitter:
    """Collects the lines of one block's function."""

    def __init__(self, scope: Scope, live_after: set[str] | None = None) -> None:
        self.scope = scope
        self.lines: list[str] = []
        self.predicate: str | None = None  # expression under which the current instruction takes effect
        self.live_after = live_after or set()  # registers still needed after the current instruction
        self.floats: dict[str, str] = {}  # register of halves -> expression of their values as float32
        self.unwritten: dict[str, str | None] = {}  # such a register, its bits not written yet -> their expression
        self.temporaries = 0

    def emit(self, instruction: Instruction) -> None:
        """Append the lines of one instruction. Raises PtxError for what the simulator does not know."""
        handler = HANDLERS.get(instruction.opcode)
        self.predicate = None
        if instruction.predicate is not None:
            self.predicate = self.condition(instruction.predicate, instruction.negated)
        try:
            if handler is None:
                raise KeyError(instruction.opcode)
            handler(self, instruction)
        except (KeyError, ValueError, IndexError) as error:
            raise unknown(instruction, error) from error

    def condition(self, register: str, negated: bool) -> str:
        name = self.scope.python_name(register)
        return f"~{name}" if negated else name

    def line(self, text: str) -> None:
        self.lines.append(text)

    def constant(self, value: int | float, view: str) -> str:
        """Name of a (1, 1) array with this value."""
        dtype = np.dtype(NUMPY_TYPES[view])
        if dtype.kind == "f":
            bits = int(np.array(value, dtype).view(UNSIGNED_TYPE[dtype.itemsize]))
        else:
            bits = int(value) & ((1 << (8 * dtype.itemsize)) - 1)
        return self.scope.constants.name(bits, view)

    def immediate(self, operand: str, type_name: str) -> int | None:
        """The bits of a constant operand, or None."""
        return immediate_bits(operand, type_name)

    def source(self, operand: str, type_name: str) -> str:
        """Expression of an operand as the instruction's type sees it: halves as uint16 or uint32 bits."""
        type_ = TYPES[type_name]
        if operand.startswith("!"):
            return f"~{self.source(operand[1:], type_name)}"
        if operand in self.scope.registers:
            self.write_bits(operand)
            stored = TYPES[self.scope.registers[operand]]
            return self.convert_view(self.scope.python_name(operand), stored, type_)
        if operand in SPECIAL_REGISTERS:
            attribute, special_type = SPECIAL_REGISTERS[operand]
            value = f"threads.{attribute}"
            if operand in UPPER_WORDS:
                value = f"({value} >> {self.constant(32, 'u64')})"
            return self.convert_view(value, TYPES[special_type], type_)
        if operand == "WARP_SZ":
            return self.constant(32, type_.view)
        bits = self.immediate(operand, type_name)
        if bits is not None:
            return self.scope.constants.name(int(bits != 0) if type_.kind == "p" else bits, type_.view)
        return self.address_of(operand, type_)

    def convert_view(self, expression: str, stored: PtxType, wanted: PtxType) -> str:
        """See a register through another type: its low bits, as they are."""
        if wanted.kind == "p" or stored.kind == "p":
            if wanted.kind != stored.kind:
                raise ValueError("a predicate is no number")
            return expression
        if wanted.size > stored.size:
            raise ValueError(f"a {stored.name} register is too narrow for {wanted.name}")
        view = stored.storage
        if wanted.size < stored.size:
            if stored.kind == "f":
                expression, view = f"{expression}.view({UNSIGNED[stored.size]})", UNSIGNED[stored.size]
            expression, view = f"{expression}.astype({UNSIGNED[wanted.size]})", UNSIGNED[wanted.size]
        return expression if view == wanted.view else f"{_atom(expression)}.view({wanted.view})"

    def address_of(self, operand: str, type_: PtxType) -> str:
        """A variable's name as operand: its address in its own space, or the generic address of a global one."""
        match = SYMBOL.fullmatch(operand)
        variable = self.scope.variables.get(match[1]) if match else None
        if match is None or variable is None:
            raise ValueError(f"'{operand}' is neither a register nor a number nor a variable")
        offset = int(match[2] or "0", 0)
        if variable.space in ("global", "const", "param"):
            parameter, name = f"parameter_address({variable.offset})", f"variable_address({variable.name!r})"
            address = f"threads.{parameter if variable.space == 'param' else name}"
            return f"({address} + {self.constant(offset, 'u64')})" if offset else address
        return self.constant(variable.offset + offset, type_.view)

    def assign(self, operand: str, expression: str, type_name: str) -> None:
        """Put a value of the instruction's type into a register, extended to its width; "_" takes nothing."""
        if operand == "_":
            return
        wanted, stored = TYPES[type_name], TYPES[self.scope.registers[operand]]
        if (wanted.kind == "p") != (stored.kind == "p") or wanted.size > stored.size:
            raise ValueError(f"a {stored.name} register cannot take a {wanted.name}")
        view = wanted.view
        if wanted.size < stored.size:
            view = (SIGNED if wanted.signed else UNSIGNED)[stored.size]
            expression = f"{_atom(expression)}.astype({view})"
        if view != stored.storage:
            expression = f"{_atom(expression)}.view({stored.storage})"
        name = self.scope.python_name(operand)
        if self.predicate is not None:
            self.write_bits(operand)
            expression = f"np.where({self.predicate}, {expression}, {name})"
        self.floats.pop(operand, None)
        self.unwritten.pop(operand, None)
        if expression != name:
            self.line(f"{name} = {expression}")

    # Halves are computed as float32. Their bits are written only when something reads them: a store, a shuffle, an
    # mma, another block. Expressions kept here mention temporaries only, which are never assigned twice.

    def temporary(self, expression: str) -> str:
        """A new name for the value of an expression."""
        self.temporaries += 1
        self.line(f"h{self.temporaries} = {expression}")
        return f"h{self.temporaries}"

    def half_values(self, operand: str, type_name: str) -> str:
        """float32 values of a half, or of two with an axis of two at the end: a temporary or a constant."""
        pair = type_name == "f16x2"
        if operand not in self.scope.registers:
            bits = self.immediate(operand, "b32" if pair else "b16")
            return self.scope.constants.halves(bits, pair) if bits is not None else self._read_halves(operand, pair)
        if TYPES[self.scope.registers[operand]].size != TYPES[type_name].size:
            return self._read_halves(operand, pair)  # the lower part of a wider register
        expression = self.floats.get(operand)
        if expression is None or not TEMPORARY.fullmatch(expression):
            name = self.temporary(expression) if expression else self._read_halves(operand, pair)
            self.floats[operand] = name
        return self.floats[operand]

    def _read_halves(self, operand: str, pair: bool) -> str:
        bits = self.source(operand, "f16x2" if pair else "f16")
        return self.temporary(f"to_float(split({bits}))" if pair else f"to_float({bits})")

    def assign_halves(self, operand: str, values: str, type_name: str, bits: str | None = None) -> None:
        """Put halves into a register, given as float32; ``bits``: a shorter way to their bits than a conversion."""
        if self.predicate is not None or TYPES[type_name].size != TYPES[self.scope.registers[operand]].size:
            self.assign(operand, bits or _bits_of(values, type_name), type_name)
            return
        self.floats[operand] = values
        self.unwritten[operand] = bits

    def write_bits(self, operand: str) -> None:
        """Assign the bits of a register that is known as float32 only."""
        if operand not in self.unwritten:
            return
        type_name = "f16x2" if TYPES[self.scope.registers[operand]].size == 4 else "f16"
        bits = self.unwritten[operand] or _bits_of(self.half_values(operand, type_name), type_name)
        del self.unwritten[operand]
        self.line(f"{self.scope.python_name(operand)} = {bits}")

    def wanted(self, operand: str) -> bool:
        """Whether anyone reads this destination."""
        return operand in self.live_after


def _bits_of(values: str, type_name: str) -> str:
    return f"join(to_half({values}))" if type_name == "f16x2" else f"to_half({values})"


def _atom(expression: str) -> str:
    """Parenthesise what a method call would bind tighter than."""
    return expression if re.fullmatch(r"[\w.]+(\([^()]*\))?", expression) else f"({expression})"


def unknown(instruction: Instruction, reason: Exception) -> PtxError:
    """The typed error for an instruction that the simulator cannot run."""
    name = ".".join((instruction.opcode, *instruction.modifiers))
    detail = "" if isinstance(reason, KeyError) else f" ({reason})"
    return PtxError(
        f"PTX line {instruction.site.ptx_line}: the simulator does not know '{name}' in '{instruction.site.text}'"
        f"{detail}.",
        cure=CURES.get(instruction.opcode, "Use an instruction that sm_70 has, or write it without inline PTX."),
    )


def type_of(instruction: Instruction) -> str:
    """The instruction's last type, such as "f32" of add.rn.ftz.f32."""
    return next(word for word in reversed(instruction.modifiers) if word in TYPES)

"""A kernel's body as one flat list of labels and instructions: scopes resolved, calls replaced by what they call.

PTX functions get their arguments through variables in the .param space. Inlined, each such variable becomes a handful
of registers, one for each place in it that is read or written, named like ``param0.4``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from labkit.errors import PtxError
from labkit.sim.kinds import instruction_kind
from labkit.sim.parse import Function, ParsedModule, declared, split_operands
from labkit.sim.program import Instruction, Site, Variable
from labkit.sim.statements import Statement
from labkit.sim.types import TYPES
from labkit.sim.wmma import Step, lower

NAME = re.compile(r"(?<![\w$%.])[%$A-Za-z_][\w$]*")
PREDICATED = re.compile(r"@(!?)\s*([$%\w]+)\s+(.*)", re.DOTALL)
CALL = re.compile(r"call(?:\.uni)?\s*(?:\(([^)]*)\)\s*,\s*)?([$%\w]+)\s*(?:,\s*\(([^)]*)\)\s*)?")
PARAM_ADDRESS = re.compile(r"\[([^\]+]+)(?:\+(-?\d+))?\]")
RUNTIME_CALLS = ("vprintf", "__assertfail")  # functions of the driver that the simulator has as well
MISSING = dict.fromkeys(
    ("malloc", "free"), "There is no heap on the simulated device: give the kernel memory by an argument."
)
DROPPED = (".pragma", ".callprototype", ".calltargets", ".noreturn")


@dataclass
class FlatBody:
    """A kernel as straight text: ``items`` are labels (str, without ":") and instructions."""

    name: str
    items: list[str | Instruction] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)  # shared and local
    branch_targets: dict[str, list[str]] = field(default_factory=dict)  # of brx.idx
    sites: list[Site] = field(default_factory=list)


def flatten(module: ParsedModule, kernel: Function) -> FlatBody:
    """Inline every call of a kernel. Raises PtxError for recursion and for calls through pointers."""
    flattener = _Flattener(module, FlatBody(kernel.name))
    flattener.function(kernel, {}, returns_to=None)
    return flattener.flat


class _Flattener:
    def __init__(self, module: ParsedModule, flat: FlatBody) -> None:
        self.module = module
        self.flat = flat
        self.arguments: dict[str, Variable] = {}  # .param variables of calls, under their unique names
        self.used: Counter[str] = Counter()
        self.active: list[str] = []  # functions being inlined, to notice recursion

    def function(self, function: Function, parameters: dict[str, str], returns_to: str | None) -> None:
        """Append a function's body; parameters: its names for what it is given; returns_to: label after the call."""
        body = function.body or []
        scopes = [parameters]
        self.active.append(function.name)
        self.declare_labels(body, 0, scopes)
        for position, statement in enumerate(body):
            if statement.text == "{":
                scopes.append({})
                self.declare_labels(body, position + 1, scopes)
            elif statement.text == "}":
                scopes.pop()
            else:
                self.statement(statement, scopes, returns_to)
        self.active.pop()

    def declare_labels(self, body: list[Statement], start: int, scopes: list[dict[str, str]]) -> None:
        """Labels are known in their whole scope, before they appear."""
        depth = 0
        for statement in body[start:]:
            depth += {"{": 1, "}": -1}.get(statement.text, 0)
            if depth < 0:
                return
            if depth == 0 and statement.text.endswith(":"):
                name = statement.text[:-1]
                scopes[-1][name] = self.unique(name)

    def statement(self, statement: Statement, scopes: list[dict[str, str]], returns_to: str | None) -> None:
        text = statement.text
        if text.endswith(":"):
            self.flat.items.append(resolve(text[:-1], scopes))
        elif text.startswith(".branchtargets"):
            label = self.flat.items.pop()  # the table's name stands as a label before it
            targets = split_operands(text.removeprefix(".branchtargets"))
            self.flat.branch_targets[str(label)] = [resolve(target, scopes) for target in targets]
        elif text.startswith(DROPPED):
            return
        elif text.startswith("."):
            for variable in declared(text, statement.line):
                self.declare(variable, scopes)
        else:
            self.instruction(statement, scopes, returns_to)

    def declare(self, variable: Variable, scopes: list[dict[str, str]]) -> None:
        name = self.unique(variable.name)
        scopes[-1][variable.name] = name
        if variable.space == "reg":
            self.flat.registers[name] = variable.type
        elif variable.space == "param":
            self.arguments[name] = replace(variable, name=name)
        elif variable.space in ("shared", "local"):
            self.flat.variables[name] = replace(variable, name=name)
        else:
            raise PtxError(f"'{variable.name}' is a variable of the module.", cure="Declare it outside the kernel.")

    def unique(self, name: str) -> str:
        """The name itself at its first use, then name~1, name~2, ..."""
        number = self.used[name]
        self.used[name] += 1
        return name if number == 0 else f"{name}~{number}"

    def instruction(self, statement: Statement, scopes: list[dict[str, str]], returns_to: str | None) -> None:
        predicate, negated, text = None, False, statement.text
        if match := PREDICATED.fullmatch(text):
            negated, predicate, text = match[1] == "!", resolve(match[2], scopes), match[3]
        word, *rest = text.split(None, 1)
        opcode, *modifiers = word.split("{")[0].split(".")
        if opcode == "call":
            self.call(statement, text, predicate, negated, scopes)
            return
        operands = tuple(resolve(operand, scopes) for operand in split_operands(rest[0] if rest else ""))
        if opcode == "ret" and returns_to is not None:
            opcode, modifiers, operands = "bra", ["uni"] if predicate is None else [], (returns_to,)
        if opcode in ("ld", "st") and "param" in "".join(modifiers):
            operands_in_registers = self.argument_moves(modifiers[-1], operands, opcode == "ld", statement.line)
            for destination, source in operands_in_registers or ():
                self.append(statement, "mov", (modifiers[-1],), (destination, source), predicate, negated)
            if operands_in_registers is not None:
                return
        self.append(statement, opcode, tuple(modifiers), operands, predicate, negated)

    def append(
        self,
        statement: Statement,
        opcode: str,
        modifiers: tuple[str, ...],
        operands: tuple[str, ...],
        predicate: str | None,
        negated: bool,
    ) -> None:
        if opcode == "wmma":
            for part in self.matrix_steps(statement, modifiers, operands):
                self.append(statement, *part, predicate, negated)
            return
        file, line = self.module.text.origin(statement.place)
        sites = self.flat.sites
        kind = instruction_kind(opcode, modifiers)
        site = Site(len(sites), statement.line, file, line, statement.text, kind)
        sites.append(site)
        self.flat.items.append(Instruction(opcode, modifiers, operands, predicate, negated, site))

    def matrix_steps(self, statement: Statement, modifiers: tuple[str, ...], operands: tuple[str, ...]) -> list[Step]:
        """What a wmma instruction stands for."""

        def new_register(name: str, type: str) -> str:
            unique = self.unique(name)
            self.flat.registers[unique] = type
            return unique

        try:
            return lower(modifiers, operands, new_register)
        except (KeyError, ValueError, IndexError) as error:
            raise PtxError(
                f"PTX line {statement.line}: the simulator does not know '{statement.text}'.",
                cure="Use the shapes m16n16k16, m32n8k16 and m8n32k16 of half, with float or half accumulators.",
            ) from error

    def call(
        self, statement: Statement, text: str, predicate: str | None, negated: bool, scopes: list[dict[str, str]]
    ) -> None:
        """Replace ``call (results), function, (arguments)`` by the function's body."""
        match = CALL.fullmatch(text)
        callee = self.module.functions.get(match[2]) if match else None
        if match is None or callee is None:
            raise PtxError(
                f"PTX line {statement.line}: the simulator cannot follow '{text}'.",
                cure="Call functions by name, chosen by if or switch: the simulator follows no pointers to functions, "
                "and so no virtual ones.",
            )
        results = [resolve(name, scopes) for name in split_operands(match[1] or "")]
        arguments = [resolve(name, scopes) for name in split_operands(match[3] or "")]
        if callee.body is None:
            self.runtime_call(statement, callee, results, arguments, predicate, negated)
            return
        if callee.name in self.active:
            raise PtxError(
                f"PTX line {statement.line}: '{callee.name}' calls itself.", cure="Write the recursion as a loop."
            )
        end = self.unique("$returned")
        if predicate is not None:
            self.append(statement, "bra", (), (end,), predicate, not negated)
        names = [variable.name for variable in (*callee.returns, *callee.parameters)]
        self.function(callee, dict(zip(names, results + arguments, strict=True)), returns_to=end)
        self.flat.items.append(end)

    def runtime_call(
        self,
        statement: Statement,
        callee: Function,
        results: list[str],
        arguments: list[str],
        predicate: str | None,
        negated: bool,
    ) -> None:
        if callee.name not in RUNTIME_CALLS:
            raise PtxError(
                f"PTX line {statement.line}: the function '{callee.name}' has no body here.",
                cure=MISSING.get(callee.name, f"Of the driver's functions it has {', '.join(RUNTIME_CALLS)}."),
            )
        registers = [self.argument_register(name, 0, self.arguments[name].type) for name in arguments]
        if results:
            result = self.argument_register(results[0], 0, "b32")
            self.append(statement, "mov", ("b32",), (result, "0"), predicate, negated)
        self.append(statement, callee.name, (), tuple(registers), predicate, negated)

    def argument_moves(
        self, type_name: str, operands: tuple[str, ...], loads: bool, line: int
    ) -> list[tuple[str, str]] | None:
        """(destination, source) of the moves that stand for a ld.param or st.param of a call's argument.

        None where the address is not a call's argument but a parameter of the kernel.
        """
        match = PARAM_ADDRESS.fullmatch(operands[1] if loads else operands[0])
        if match is None or match[1] not in self.arguments:
            return None
        values = split_operands((operands[0] if loads else operands[1]).strip("{}"))
        size = TYPES[type_name].size
        places = [
            self.argument_register(match[1], int(match[2] or 0) + size * position, type_name)
            for position in range(len(values))
        ]
        return list(zip(values, places, strict=True) if loads else zip(places, values, strict=True))

    def argument_register(self, name: str, offset: int, type_name: str) -> str:
        """The register that stands for some bytes of an argument."""
        register = f"{name}.{offset}" if offset else name
        bits = max(TYPES[type_name].bits, 16)
        kept = self.flat.registers.setdefault(register, f"b{bits}")
        if kept != f"b{bits}":
            raise PtxError(
                f"The argument '{name}' is passed as {kept} and read as {type_name}.",
                cure="Declare the function __forceinline__.",
            )
        return register


def resolve(text: str, scopes: list[dict[str, str]]) -> str:
    """Replace names by the unique names that the innermost scopes give them."""

    def unique(match: re.Match[str]) -> str:
        return next((scope[match[0]] for scope in reversed(scopes) if match[0] in scope), match[0])

    return NAME.sub(unique, text)

"""Statements to declarations: the functions, kernel parameters and variables of a PTX module."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from labkit.errors import PtxError
from labkit.sim.program import Variable
from labkit.sim.statements import Statement, Text, split
from labkit.sim.types import TYPES

SPACES = ("param", "shared", "local", "global", "const", "reg")
DECLARATION_START = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?:global|const|shared|local|param|reg|tex)\b"
)
HEADER = re.compile(
    r"(?:\.(?:visible|extern|weak)\s+)*\.(entry|func)\s*(?:\.noreturn\s*)?(?:\((?P<returns>[^)]*)\)\s*)?"
    r"(?P<name>[$%\w]+)\s*(?:\((?P<parameters>[^)]*)\))?(?P<rest>.*)",
    re.DOTALL,
)
POINTER = re.compile(r"(?:generic\(([$%\w]+)\)|([$%_A-Za-z][$%\w]*))(?:\+(\d+))?")
ATTRIBUTE = re.compile(r"\.attribute\([^)]*\)\s*")  # where memory lies: all of it is one here
DECLARATOR = re.compile(r"([$%\w]+)(?:<(\d+)>)?((?:\s*\[\s*\w*\s*\])*)\s*(?:=\s*(.*))?", re.DOTALL)


@dataclass
class Function:
    """A .entry or .func with its body still as statements."""

    name: str
    is_entry: bool
    parameters: list[Variable]
    returns: list[Variable]
    body: list[Statement] | None  # None: declared here, defined by the driver, such as vprintf
    line: int
    max_threads: int | None = None


@dataclass
class ParsedModule:
    """Everything that a PTX text declares."""

    ptx: str
    text: Text
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)  # shared, global and const


def parse(ptx: str) -> ParsedModule:
    """Read the declarations of a PTX text. Raises PtxError with the line of what it cannot read."""
    target = re.search(r"^\s*\.target\s+([\w]+)", ptx, re.MULTILINE)
    module = ParsedModule(ptx, split(ptx), target[1] if target else "")
    statements = iter(module.text.statements)
    for statement in statements:
        header = HEADER.fullmatch(statement.text)
        if header:
            function = _function(header, statement.line)
            if not statement.declares_only:
                function.body = _body(statements, statement)
            if function.body is not None or function.name not in module.functions:
                module.functions[function.name] = function
        elif DECLARATION_START.match(statement.text):
            for variable in declared(statement.text, statement.line):
                module.variables[variable.name] = variable
    return module


def _body(statements: Iterator[Statement], header: Statement) -> list[Statement]:
    """The statements up to the brace that closes the function; the outer braces are left out."""
    body: list[Statement] = []
    depth = 0
    for statement in statements:
        depth += {"{": 1, "}": -1}.get(statement.text, 0)
        if depth == 0:
            return body[1:]
        body.append(statement)
    raise PtxError(f"PTX line {header.line}: the function is not closed.", cure="Add the missing '}'.")


def _function(header: re.Match[str], line: int) -> Function:
    limit = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", header["rest"])
    max_threads = None
    if limit:
        max_threads = int(limit[1]) * int(limit[2] or 1) * int(limit[3] or 1)
    return Function(
        name=header["name"],
        is_entry=header[1] == "entry",
        parameters=_parameters(header["parameters"], line),
        returns=_parameters(header["returns"], line),
        body=None,
        line=line,
        max_threads=max_threads,
    )


def _parameters(text: str | None, line: int) -> list[Variable]:
    """Parameters of a function, laid out one after the other with their alignment."""
    parameters: list[Variable] = []
    offset = 0
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        (variable,) = declared(part, line)
        offset = -(-offset // variable.align) * variable.align
        parameters.append(replace(variable, offset=offset))
        offset += variable.size
    return parameters


def declared(text: str, line: int) -> list[Variable]:
    """The variables of one declaration, such as ``.shared .align 16 .b8 tile[4096]`` or ``.reg .b32 %r<9>``."""
    directives, declarators = _split_declaration(text)
    space = next((word for word in directives if word in SPACES), None)
    type_name = next((word for word in directives if word in TYPES), None)
    if space is None or type_name is None:
        raise PtxError(
            f"PTX line {line}: the simulator does not know the declaration '{text}'.",
            cure="It knows .reg, .param, .shared, .local, .global and .const of integer, float and half types.",
        )
    vector = next((int(word[1]) for word in directives if word in ("v2", "v4")), 1)
    alignment = next((int(word) for word in directives if word.isdigit()), 0)
    return [
        variable
        for declarator in split_operands(declarators)
        for variable in _declare(declarator, space, type_name, vector, alignment, line)
    ]


def _split_declaration(text: str) -> tuple[list[str], str]:
    """(["shared", "align", "16", "b8"], "tile[4096]")"""
    words: list[str] = []
    rest = ATTRIBUTE.sub("", text).strip()
    while match := re.match(r"\.(\w+)\s*", rest):
        words.append(match[1])
        rest = rest[match.end() :]
        if match[1] == "align" and (number := re.match(r"(\d+)\s*", rest)):
            if "ptr" not in words:  # what a pointer points to says nothing about the parameter itself
                words.append(number[1])
            rest = rest[number.end() :]
    return words, rest


def _declare(declarator: str, space: str, type_name: str, vector: int, alignment: int, line: int) -> list[Variable]:
    match = DECLARATOR.fullmatch(declarator)
    if not match:
        raise PtxError(f"PTX line {line}: cannot read '{declarator}'.", cure="Check the declaration.")
    name, count, dimensions, initial = match.groups()
    element = TYPES[type_name].size * vector
    size = element
    for dimension in re.findall(r"\[\s*(\w*)\s*\]", dimensions or ""):
        size *= int(dimension, 0) if dimension else 0
    names = [name] if count is None else [f"{name}{i}" for i in range(int(count))]
    data, pointers = _initial(initial, type_name, size, line) if initial else (None, ())
    return [
        Variable(n, space, type_name, size, alignment or element, initial=data, pointers=tuple(pointers)) for n in names
    ]


def _initial(text: str, type_name: str, size: int, line: int) -> tuple[bytes, list[tuple[int, str, int]]]:
    """The bytes of ``{1, 2, 3}``, ``{{1, 2}, {3, 4}}`` or ``7``, padded with zeros to the variable's size.

    And where addresses of variables stand among them, such as ``generic(table)+8``: see Variable.pointers.
    """
    type_ = TYPES[type_name]
    data = bytearray()
    pointers: list[tuple[int, str, int]] = []
    for word in re.sub(r"\s*\+\s*", "+", text).replace("{", " ").replace("}", " ").replace(",", " ").split():
        value = immediate_bits(word, type_name)
        if value is None:
            address = POINTER.fullmatch(word) if type_.size == 8 else None
            if address is None:
                raise PtxError(
                    f"PTX line {line}: the initial value '{word}' is no number and no pointer.",
                    cure="Set the variable from the host, or in a kernel.",
                )
            pointers.append((len(data), address[1] or address[2], int(address[3] or 0)))
            value = 0
        data += value.to_bytes(type_.size, "little")
    return bytes(data[:size].ljust(size, b"\0")), pointers


def immediate_bits(word: str, type_name: str) -> int | None:
    """The bits of an immediate operand in the given type; None if the word is not a number."""
    type_ = TYPES[type_name]
    bits = None
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", word) and len(word) == 2 + 2 * type_.size:
        bits = int(word[2:], 16)  # as it stands: a NaN keeps its payload
    elif re.fullmatch(r"-?0[fF][0-9a-fA-F]{8}", word):
        bits = _float_bits(struct.unpack("<f", struct.pack("<I", int(word[-8:], 16)))[0], word, type_name)
    elif re.fullmatch(r"-?0[dD][0-9a-fA-F]{16}", word):
        bits = _float_bits(struct.unpack("<d", struct.pack("<Q", int(word[-16:], 16)))[0], word, type_name)
    elif match := re.fullmatch(r"([-~!]?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]?", word):
        digits = match[2]
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        number = int(digits, 8) if octal else int(digits, 0)
        number = {"-": -number, "~": ~number, "!": int(not number), "": number}[match[1]]
        if type_.kind == "f" and not match[2].lower().startswith("0x"):
            return _float_bits(float(number), "", type_name)
        bits = number
    elif re.fullmatch(r"-?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?", word):
        return _float_bits(float(word), "", type_name)
    return None if bits is None else bits & ((1 << type_.bits) - 1)


def _float_bits(value: float, word: str, type_name: str) -> int:
    """Bits of a float in the type of the instruction; a float given to an integer type is its own 32 or 64 bits."""
    if word.startswith("-"):
        value = -value
    size = TYPES[type_name].size if TYPES[type_name].floating else (4 if "f" in word[:3].lower() else 8)
    form, whole = {2: ("<e", "<H"), 4: ("<f", "<I"), 8: ("<d", "<Q")}[size]
    return int(struct.unpack(whole, struct.pack(form, value))[0])


def split_operands(text: str) -> list[str]:
    """Split at the commas outside all brackets; operands keep their brackets and lose their spaces."""
    operands: list[str] = []
    depth = 0
    current = ""
    for character in text:
        if character == "," and not depth:
            operands.append(current)
            current = ""
            continue
        depth += (character in "{[(") - (character in "}])")
        current += character
    operands.append(current)
    return ["".join(operand.split()) for operand in operands if operand.strip()]

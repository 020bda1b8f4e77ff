"""What the parameters of a user's kernel point to, which PTX does not say.

The declaration is read from the source where that is safe. Where it goes through macros, typedefs or templates, the
compiler is asked: it writes the types of a kernel, all names resolved, into the symbol of a template over them.
"""

from __future__ import annotations

import re

from labkit.device.declaration import COMMENT, Declared, declared_parameters, parameter_names
from labkit.device.parameter import DTYPES, SIGNED, UNSIGNED
from labkit.errors import KernelBuildError
from labkit.sim.source import Program, compile_text
from labkit.sim.symbols import spelled, split_parameters

PROBE = "labkit_signature"
ASK = "\ntemplate <class Kernel> __device__ int {probe};\ntemplate __device__ int {probe}<decltype({entry})>;\n"
PLAIN_TYPES = {*DTYPES, "void"}
VECTORS = re.compile(r"(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]|(?:__)?half2")


def declared_types(program: Program) -> list[Declared | None]:
    """One for each parameter of the kernel; all None where neither the source nor the compiler can tell."""
    count = len(program.kernel.parameters)
    name, types = split_parameters(spelled(program.kernel.name))
    if types is None:
        if (plain := _read_plainly(program, name)) is not None and len(plain) == count:
            return list(plain)
        types = _ask_compiler(program, name)
    if types is None or len(types) != count:
        return [None] * count
    names = parameter_names(program.text, re.sub(r"<.*", "", name).rpartition("::")[2])
    known = names if len(names) == count else [""] * count
    return [declared_from(type_, each) for type_, each in zip(types, known, strict=True)]


def declared_from(type_: str, name: str) -> Declared:
    """A parameter from its type in the compiler's spelling, such as "float const*"."""
    if "(" in type_ or not type_.endswith("*"):  # a pointer to an array or function; or a value
        return Declared(name, _unqualified(type_), pointer="*" in type_, constant=False)
    target = type_[:-1]
    return Declared(
        name, _unqualified(target), pointer=True, constant=re.search(r"\bconst\b[^*]*$", target) is not None
    )


def _unqualified(type_: str) -> str:
    return " ".join(re.sub(r"\b(?:const|volatile)\b", " ", type_).replace("*", " * ").split())


def _read_plainly(program: Program, entry: str) -> tuple[Declared, ...] | None:
    """From the source, if it declares the kernel once, and with types that nobody has given another meaning."""
    found = declared_parameters(program.text, entry)
    text = COMMENT.sub(" ", program.text)
    if found is None or len(re.findall(rf"__global__[^;{{}}]*?\b{re.escape(entry)}\s*\(", text)) != 1:
        return None
    for parameter in found:
        type_ = parameter.type.removesuffix(" *")
        known = type_ in PLAIN_TYPES or SIGNED.match(type_) or UNSIGNED.search(type_) or VECTORS.fullmatch(type_)
        if not known:
            return None
        if any(word in program.macros or _redefined(word, text) for word in type_.split()):
            return None
    return found


def _redefined(word: str, text: str) -> bool:
    new = rf"\btypedef\b[^;]*\b{word}\s*;|\busing\s+{word}\s*=|^[ \t]*#[ \t]*define[ \t]+{word}\b"
    return re.search(new, text, re.MULTILINE) is not None


def _ask_compiler(program: Program, entry: str) -> list[str] | None:
    if not program.text:
        return None  # PTX alone
    try:
        ptx = compile_text(program, program.text + ASK.format(probe=PROBE, entry=entry))
    except KernelBuildError:  # a kernel inside a namespace, whose name means nothing outside
        return None
    symbol = re.search(rf"\b_Z\d+{PROBE}\w*", ptx)
    match = re.fullmatch(rf"{PROBE}<void (\(.*\))>", spelled(symbol[0])) if symbol else None
    return split_parameters(match[1])[1] if match else None

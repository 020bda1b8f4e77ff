"""C++ names of kernels: a symbol such as _ZN2ns1kIdLi3EEEvPT_ is ns::k<double, 3>(double*) in the source."""

from __future__ import annotations


def spelled(symbol: str) -> str:
    """A kernel as its source spells it, with the types of its parameters; one that is extern "C" as it is."""
    if not symbol.startswith("_Z"):
        return symbol  # the demangler would take "f" for float

    import torch

    text: str = torch._C._demangle(symbol)
    return text.removeprefix("void ")


def plain_name(symbol: str) -> str:
    """A kernel as its source spells it, without its parameters."""
    return split_parameters(spelled(symbol))[0]


def split_parameters(spelling: str) -> tuple[str, list[str] | None]:
    """("ns::k<double, 3>", ["double*"]); None for an extern "C" kernel, whose symbol says nothing of them."""
    if not spelling.endswith(")"):
        return spelling, None
    depth = 0
    for position in range(len(spelling) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(spelling[position], 0)
        if depth == 0:
            return spelling[:position], _at_commas(spelling[position + 1 : -1])
    return spelling, None


def is_called(symbol: str, name: str) -> bool:
    """Whether a user may mean this kernel by ``name``: k, ns::k, k<double,3>, or all of it with the parameters."""
    whole = spelled(symbol)
    full, _ = split_parameters(whole)
    plain = full.partition("<")[0] if full.endswith(">") else full
    arguments = full[len(plain) :]
    last = plain.rpartition("::")[2]
    return _squeezed(name) in {_squeezed(each) for each in (symbol, whole, full, plain, last + arguments, last)}


def _squeezed(text: str) -> str:
    return text.replace(" ", "")


def _at_commas(text: str) -> list[str]:
    """The parts between commas that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "(<[") - (character in ")>]")
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts

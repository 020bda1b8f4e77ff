"""How large a value a chat template may make, foreseen before it is made.

Afterwards would be too late: `'a' * 10**12` never returns. Every bound here is an upper bound on the size
that Python's own operation would give, so what it refuses may now and then have been just under the limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError

MAX_SIZE = 8_000_000  # characters of a text or items of a list: more than any context window holds
MAX_INTEGER = 2**128
_MAX_WIDTH = 9_999  # of one field in a format

# Possessive repeats (*+) keep the search linear in the length of a hostile text.
_BRACE, _PERCENT = r"\{[^{}:]*+:", r"%(?:\([^()]*\))?[^a-zA-Z%]*"
_PADDED_FIELD = re.compile(rf"{_BRACE}[^{{}}\d]*+\d|{_PERCENT}\d")
_WIDE_FIELD = re.compile(rf"{_BRACE}[^{{}}]*?(?:\d{{5}}|\{{)|{_PERCENT}(?:\d{{5}}|\*)")  # or a width from outside
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
_PADDING_FILTERS = frozenset({"center", "indent", "batch", "slice", "round"})


class LimitError(SecurityError):
    """A template went over a limit."""


def check_size(size: int) -> None:
    """Raises LimitError for a text or list beyond MAX_SIZE."""
    if size > MAX_SIZE:
        raise LimitError("it makes a text or list that is too long")


def checked_result(value: Any) -> Any:
    """The value, unless it is a text, list or number beyond the limits."""
    check_size(length(value))
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise LimitError("it makes a number that is too large")
    return value


def length(value: Any) -> int:
    """Characters or items; 0 for what has neither."""
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Foresee `left operator right` for + * ** %."""
    if operator == "**" and not (isinstance(right, (int, float)) and abs(right) <= 64):
        raise LimitError("it makes a number that is too large")
    if operator == "*":
        check_size(length(left) * _count(right) + length(right) * _count(left))
    if operator == "+":
        check_size(length(left) + length(right))
    if operator == "%" and isinstance(left, str):
        values = right.values() if isinstance(right, Mapping) else right if isinstance(right, tuple) else (right,)
        check_format(left, list(values))


def check_text_method(text: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Foresee `text.name(*args, **kwargs)`."""
    values = [*args, *kwargs.values()]
    if name in _PADDING_METHODS:
        check_size(max(map(_count, values), default=0))
    if name == "expandtabs":
        check_size(text.count("\t") * max(map(_count, values), default=8))
    if name in ("format", "format_map"):
        check_format(
            text, [*values, *(item for value in values if isinstance(value, Mapping) for item in value.values())]
        )
    if name == "replace" and len(args) >= 2:
        check_size(len(text) + text.count(args[0]) * length(args[1]))
    if name == "join" and args and isinstance(args[0], (list, tuple)):
        check_size(joined_length(text, args[0]))


def check_filter(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Foresee a filter that pads; args[0] is what it is applied to."""
    if name in _PADDING_FILTERS:
        widths = [max(_count(value), length(value)) for value in [*args[1:], *kwargs.values()]]
        check_size(max(1, length(args[0])) * max(widths, default=1))


def check_format(text: str, values: Sequence[Any]) -> None:
    """Foresee `text % values` and `text.format(*values)`: no wide field, and none that repeats a long value."""
    if _WIDE_FIELD.search(text):
        raise LimitError("it pads a text too far")
    fields = text.count("{") + text.count("%")
    longest = max((length(value) for value in values), default=0)
    check_size(len(text) + fields * longest + _MAX_WIDTH * len(_PADDED_FIELD.findall(text)))


def joined_length(separator: str, items: Sequence[Any]) -> int:
    """The length of the items joined."""
    return sum(map(length, items)) + len(separator) * len(items)


def _count(value: Any) -> int:
    return max(value, 0) if isinstance(value, int) else 0

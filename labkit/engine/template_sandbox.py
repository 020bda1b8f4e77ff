"""A jinja2 environment in which a stranger's template can neither reach Python nor run or grow without end.

jinja2's sandbox keeps a template away from private attributes and from changing its data, but lets it loop
for ever (nested loops, recursive macros) and grow texts without limit. So every pass through a loop or a macro
is counted here, and what makes long values out of short ones (`+ * ~ %`, padding, replace, join) is limited.
A checkpoint's template is data from the network: it must not be able to hang the engine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from labkit.engine.template_limits import (
    LimitError,
    check_filter,
    check_operator,
    check_size,
    check_text_method,
    checked_result,
    joined_length,
)

MAX_PASSES = 1_000_000  # passes through loops and macros in one rendering
MAX_SECONDS = 10.0


@dataclass
class _Budget:
    passes: int
    deadline: float


_budget: ContextVar[_Budget] = ContextVar("template_budget")


@contextmanager
def limited_run() -> Iterator[None]:
    """The rendering inside may take MAX_PASSES passes and MAX_SECONDS."""
    token = _budget.set(_Budget(MAX_PASSES, time.monotonic() + MAX_SECONDS))
    try:
        yield
    finally:
        _budget.reset(token)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates: their usual helpers, with every construct bounded."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
        self.filters = {name: _bounded_filter(name, function) for name, function in self.filters.items()}
        self.filters |= {"tojson": _to_json, "replace": _replace, "join": _join}
        self.globals = {
            "range": self.globals["range"],  # the sandbox's own, of at most 100,000
            "dict": _make_dict,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _count_passes(super()._parse(source, name, filename))

    def count_pass(self) -> str:
        """Called by the compiled template at each pass through a loop or macro."""
        budget = _budget.get()
        budget.passes -= 1
        if budget.passes < 0 or time.monotonic() > budget.deadline:
            raise LimitError("it loops too long")
        return ""

    def concatenate(self, *parts: Any) -> str:
        """The `~` operator."""
        texts = [str(part) for part in parts]
        check_size(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`+ * ** %` with the size of the result foreseen, since afterwards would be too late."""
        check_operator(operator, left, right)
        return checked_result(super().call_binop(context, operator, left, right))

    def call(self, context: Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        """A call in the template; methods of texts can make long results out of short ones."""
        method = getattr(called, "__wrapped__", called)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)  # a join can be measured
            check_text_method(owner, method.__name__, args, kwargs)
        return checked_result(super().call(context, called, *args, **kwargs))


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks a training target; for rendering it is its content."""

    tags = {"generation"}  # noqa: RUF012 - the attribute's type is jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """jinja2's namespace without private names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in dict(*args, **kwargs):
            _check_name(name)
        super().__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _count_passes(tree: nodes.Template) -> nodes.Template:
    """Put a call of count_pass at the head of each loop and macro, and one of concatenate for each `~`."""
    for body in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        body.body.insert(0, nodes.ExprStmt(_call("count_pass", [])))  # type: ignore[attr-defined]
    return _ConcatCalls().visit(tree).set_environment(tree.environment)


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


class _ConcatCalls(jinja2.visitor.NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("concatenate", node.nodes)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    takes_context = hasattr(function, "jinja_pass_arg")  # then the first argument is jinja2's, not the value

    @wraps(function)  # carries jinja2's marks of what the filter wants as its first argument
    def bounded(*args: Any, **kwargs: Any) -> Any:
        check_filter(name, args[1:] if takes_context else args, kwargs)
        return checked_result(function(*args, **kwargs))

    return bounded


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    arguments = (old, new, -1 if count is None else count)
    check_text_method(str(text), "replace", arguments, {})
    return str(text).replace(*arguments)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    items = value if attribute is None else map(make_attrgetter(environment, attribute), value)
    texts = [str(item) for item in items]
    check_size(joined_length(d, texts))
    return d.join(texts)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as it is, where jinja2's own filter would escape < > & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"{name!r} is no name for a variable of a namespace")

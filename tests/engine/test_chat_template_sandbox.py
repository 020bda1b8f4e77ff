"""The template sandbox: no way to Python, and an end to every template."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from labkit.engine import template_sandbox
from labkit.engine.chat_template import render_chat
from labkit.engine.template_limits import LimitError, check_format
from labkit.errors import TemplateError

CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__",
        "''.__class__.__mro__[1].__subclasses__()",
        "messages.__init__.__globals__",
        "raise_exception.__globals__",
        "raise_exception.__code__",
        "dict.__base__",
        "namespace.__init__.__globals__['__builtins__']",
        "self.__init__",
        "range.__self__",
        "'{0.__class__}'.format(messages)",
        "'{x.__class__}'.format_map({'x': 1})",
        "messages | map(attribute='__class__') | first",
        "('' | attr('__class__')).mro()",
        "(messages[0] | attr('__init__')).__globals__",
        "messages.append(1)",
        "messages[0].update(role='x')",
        "namespace(__class__=1)",
        "joiner.__init__",
        "cycler.__init__.__globals__.os.popen('id').read()",
        "lipsum.__globals__",
    ],
)
def test_the_sandbox_keeps_python_out_of_reach(expression: str) -> None:
    try:
        shown = render_chat("{{ " + expression + " }}", CHAT)
    except TemplateError:
        return
    assert shown == ""  # jinja2's sandbox answers a private attribute with an undefined value


def test_namespaces_take_no_private_names() -> None:
    with pytest.raises(TemplateError, match="_x"):
        render_chat("{% set ns = namespace() %}{% set ns._x = 1 %}", CHAT)
    assert render_chat("{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}", CHAT) == "2"


ENDLESS = {
    "nested loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "loops in a filter": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for a in range(9) recursive %}{{ loop(range(9)) if loop.depth < 30 }}{% endfor %}",
    "recursive macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "range": "{{ range(10 ** 9) | list }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "times": "{{ 'a' * 10 ** 11 }}",
    "list times": "{{ [1] * 10 ** 11 }}",
    "left times": "{{ 10 ** 11 * 'a' }}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "concatenating": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "output": "{% set x = 'a' * 4000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "padding": "{{ 'a'.ljust(10 ** 11) }}",
    "center": "{{ 'a' | center(10 ** 11) }}",
    "indent": "{{ 'a' | indent(10 ** 11, true) }}",
    "format": "{{ '{:>99999999999}'.format(1) }}",
    "nested format": "{{ '{:>{w}}'.format(1, w=10 ** 11) }}",
    "percent": "{{ '%99999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (10 ** 11, 1) }}",
    "padded fields": "{{ ('{0:9999}' * 100000).format(1) }}",
    "repeated fields": "{{ ('{0}' * 100000).format('a' * 4000000) }}",
    "repeated named fields": "{{ ('{x}' * 100000).format(x='a' * 4000000) }}",
    "repeated mapped fields": "{{ ('{x}' * 100000).format_map({'x': 'a' * 4000000}) }}",
    "percent fields": "{{ ('%(x)s' * 100000) % {'x': 'a' * 4000000} }}",
    "padded percent fields": "{{ ('%(x)9999s' * 100000) % {'x': 1} }}",
    "precision": "{{ '%.99999f' % 1 }}",
    "tabs": "{{ ('\\t' * 4000000).expandtabs(10000) }}",
    "indented lines": "{{ ('a\\n' * 2000000) | indent('b' * 1000000) }}",
    "indent by number": "{{ ('a\\n' * 2000000) | indent(9999) }}",
    "batch": "{{ [1] | batch(10 ** 11, 0) | list }}",
    "replace": "{{ ('a' * 4000000).replace('a', 'b' * 4000000) }}",
    "replace filter": "{{ ('a' * 4000000) | replace('a', 'b' * 4000000) }}",
    "join": "{{ ('b' * 4000000).join(['a'] * 4000000) }}",
    "join of a generator": "{{ ('b' * 4000000).join(('a' * 40000) | map('upper')) }}",
    "join filter": "{{ (['a'] * 4000000) | join('b' * 4000000) }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_every_template_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_PASSES", 20_000)
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 2.0)
    start = time.monotonic()
    with pytest.raises(TemplateError, match="failed: OverflowError" if name == "range" else "was stopped"):
        render_chat(ENDLESS[name], CHAT)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("text", ["{" + ":" * 200_000, *(part * 100_000 for part in ("{:", "{:1", "%(", "%-", "%"))])
def test_measuring_a_format_is_linear_in_its_length(text: str) -> None:
    start = time.monotonic()
    with suppress(LimitError):
        check_format(text, [1])
    assert time.monotonic() - start < 5


def test_filters_keep_their_meaning() -> None:
    template = (
        "{{ messages | map(attribute='role') | join(',') }} {{ messages | join('+', attribute='role') }} "
        "{{ 'aXbX' | replace('X', '-') }} {{ 'aXbX' | replace('X', '-', 1) }} {{ [1, 2] | join }} "
        "{{ {'b': 1, 'a': '<é>'} | tojson }} {{ [1] | tojson(indent=1) }} {{ '%s-%02d' % ('a', 3) }} "
        "{{ 'x'.join(['a', 'b']) }} {{ '{:>4}'.format(7) }} {{ 2 ** 10 }} {{ 7 % 4 }} "
        "{{ 'a' | indent(2, true) }} {{ '{:.2f} {x}'.format(1.5, x=123456) }} "
        "{{ dict(a=1).a }} {{ 1 ~ 'b' ~ 2.5 }}"
    )
    want = 'user user a-b- a-bX 12 {"b": 1, "a": "<é>"} [\n 1\n] a-03 axb    7 1024 3   a 1.50 123456 1 1b2.5'
    assert render_chat(template, [{"role": "user", "content": ""}]) == want


def test_dates_are_rendered() -> None:
    assert render_chat("{{ strftime_now('%Y') }}", CHAT).isdecimal()

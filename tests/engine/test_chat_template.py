"""render_chat: the prompts of transformers, a sandbox without holes, and an end to every template."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

import labkit
from labkit.engine import template_sandbox
from labkit.engine.chat_template import render_chat
from labkit.engine.tokenizer import Tokenizer
from labkit.errors import RequestError, TemplateError

TINY = Path(labkit.__file__).parent / "assets" / "labkit-tiny"

CHATML = """{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{% endif %}
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Every construct that the templates of reasoning models with tools use.
REASONING = """
{%- macro section(text, close=true) %}
    {%- if text is string %}{{- text | trim }}
    {%- elif text is iterable and text is not mapping %}{%- for item in text %}{{- item.text }}{%- endfor %}
    {%- elif text is none or text is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('Unexpected content type.') }}{%- endif %}
{%- endmacro %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.seen and m.role == 'user' %}{%- set ns.seen = true %}{%- set ns.last = index %}{%- endif %}
{%- endfor %}
{%- if not ns.seen %}{{- raise_exception('No user query found in messages.') }}{%- endif %}
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n<tools>' }}
    {%- for tool in tools %}{{- '\n' ~ (tool | tojson) }}{%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
    {%- set content = section(m.content) | trim %}
    {%- if m.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content | trim %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + m.role + '\n' }}
        {%- if loop.index0 > ns.last %}{{- '<think>\n' ~ thought ~ '\n</think>\n\n' }}{%- endif %}
        {%- generation %}{{- content }}{%- endgeneration %}
        {%- for call in m.tool_calls or [] %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\n<tool_call>\n<function=' + call.name + '>\n' }}
            {%- for name, value in call.arguments | items %}
                {%- if name == 'hidden' %}{%- continue %}{%- endif %}
                {%- set value = value | tojson if value is mapping or value is sequence and value is not string
                    else value | string %}
                {{- '<parameter=' + name + '>\n' + value + '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- elif m.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- else %}{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' + '\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}
    {%- else %}{{- '<think>\n' }}{%- endif %}
{%- endif %}"""

CALL = {
    "type": "function",
    "function": {"name": "find", "arguments": {"q": "<b> & é", "n": 3, "opts": {"x": [1, None]}, "hidden": 1}},
}
TOOL = {"type": "function", "function": {"name": "find", "description": 'it\'s <fast> & "free"', "parameters": {}}}
CONVERSATION = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "héllo <|im_end|> {{ 7 * 7 }}"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhi"},
    {"role": "user", "content": "find it"},
    {"role": "assistant", "content": "", "reasoning_content": "use the tool", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": '{"found": true}'},
    {"role": "tool", "content": "none"},
]
TEXT = st.text(max_size=30)
CHATS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": TEXT}), min_size=1
)


def oracle(template: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    prompts, _ = render_jinja_template([messages], chat_template=template, **variables)
    return prompts[0]


@given(CHATS, st.booleans())
def test_chatml_is_that_of_transformers(messages: list[dict[str, Any]], prompt: bool) -> None:
    want = oracle(CHATML, messages, add_generation_prompt=prompt)
    assert render_chat(CHATML, messages, add_generation_prompt=prompt) == want


@pytest.mark.parametrize("tools", [None, [TOOL], [TOOL, TOOL]])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
@pytest.mark.parametrize("length", range(2, len(CONVERSATION) + 1))
def test_reasoning_template_is_that_of_transformers(length: int, variables: dict[str, Any], tools: Any) -> None:
    messages = CONVERSATION[:length]
    want = oracle(REASONING, messages, tools=tools, add_generation_prompt=True, **variables)
    assert render_chat(REASONING, messages, tools=tools, **variables) == want


@given(CHATS, st.sampled_from([{}, {"enable_thinking": False}, {"enable_thinking": True}]))
def test_labkit_tiny_is_that_of_transformers(messages: list[dict[str, Any]], variables: dict[str, Any]) -> None:
    want = TINY_ORACLE.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)
    assert render_chat(TINY_TOKENIZER, messages, **variables) == want


TINY_ORACLE = AutoTokenizer.from_pretrained(TINY)
TINY_TOKENIZER = Tokenizer.from_directory(TINY)


def test_special_strings_are_known_to_the_template() -> None:
    TINY_TOKENIZER.templates["default"], kept = "{{ eos_token }}|{{ bos_token }}", TINY_TOKENIZER.templates["default"]
    try:
        assert render_chat(TINY_TOKENIZER, CONVERSATION) == "<|im_end|>|"
    finally:
        TINY_TOKENIZER.templates["default"] = kept


def test_tools_prefer_the_template_made_for_them(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert [render_chat(tokenizer, CONVERSATION, tools=tools) for tools in (None, [], [TOOL])] == ["D", "D", "T"]


def test_a_model_without_template_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    with pytest.raises(TemplateError, match="no chat template"):
        render_chat(Tokenizer.from_directory(tmp_path), CONVERSATION)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert render_chat("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a b"


def test_absent_values_are_absent_and_a_call_needs_no_content() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL], "name": None}
    template = "{{ messages[0].content is string }} {{ messages[0].name is defined }}"
    assert render_chat(template, [message]) == "True False"


@pytest.mark.parametrize(
    "messages, message",
    [
        ([], "empty"),
        ("hi", "no list"),
        (None, "no list"),
        (["hi"], "Message 0 is a str"),
        ([{"role": "user", "content": "a"}, 5], "Message 1 is a int"),
        ([{"content": "a"}], "role None"),
        ([{"role": 3, "content": "a"}], "role 3"),
        ([{"role": "user"}], "type NoneType"),
        ([{"role": "user", "content": 5}], "type int"),
        ([{"role": "user", "content": ["a"]}], "'str'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "'image_url'"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "'text'"),
        ([{"role": "user", "content": "a", "extra": object()}], "not JSON"),
    ],
)
def test_malformed_messages_are_refused_by_name(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        render_chat(CHATML, messages)
    assert caught.value.cure


@pytest.mark.parametrize(
    "template, message",
    [
        ("{% for m in messages %}", "broken in line 1"),
        ("{{ messages[0", "broken in line 1"),
        ("\n{% nonsense %}", "broken in line 2"),
        ("{{ 'a' | no_such_filter }}", "no_such_filter"),
        ("{{ raise_exception('Only users may speak.') }}", "refuses the messages: Only users may speak."),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ missing.field.deeper }}", "missing"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'other' %}", "failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_broken_templates_are_typed_errors(template: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        render_chat(template, CONVERSATION)
    assert caught.value.cure


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
        shown = render_chat("{{ " + expression + " }}", CONVERSATION)
    except TemplateError:
        return
    assert shown == ""  # jinja2's sandbox answers a private attribute with an undefined value


def test_namespaces_take_no_private_names() -> None:
    with pytest.raises(TemplateError, match="_x"):
        render_chat("{% set ns = namespace() %}{% set ns._x = 1 %}", CONVERSATION)
    assert render_chat("{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}", CONVERSATION) == "2"


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
    "doubling with ~": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "output": "{% set x = 'a' * 4000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "padding": "{{ 'a'.ljust(10 ** 11) }}",
    "center": "{{ 'a' | center(10 ** 11) }}",
    "indent": "{{ 'a' | indent(10 ** 11, true) }}",
    "format": "{{ '{:>99999999999}'.format(1) }}",
    "nested format": "{{ '{:>{w}}'.format(1, w=10 ** 11) }}",
    "percent": "{{ '%99999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (10 ** 11, 1) }}",
    "replace": "{{ ('a' * 4000000).replace('a', 'b' * 4000000) }}",
    "replace filter": "{{ ('a' * 4000000) | replace('a', 'b' * 4000000) }}",
    "join": "{{ ('b' * 4000000).join(['a'] * 4000000) }}",
    "join of a generator": "{{ ('b' * 4000000).join('a' * 40000 | map('upper')) }}",
    "join filter": "{{ (['a'] * 4000000) | join('b' * 4000000) }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_every_template_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_PASSES", 20_000)
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 2.0)
    start = time.monotonic()
    with pytest.raises(TemplateError):
        render_chat(ENDLESS[name], CONVERSATION)
    assert time.monotonic() - start < 20


def test_limits_are_per_rendering_and_far_above_real_chats() -> None:
    messages = [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "word " * 200}] * 500
    for _ in range(2):
        assert len(render_chat(REASONING, messages, tools=[TOOL] * 50)) > 900_000


def test_filters_keep_their_meaning() -> None:
    template = (
        "{{ messages | map(attribute='role') | join(',') }} {{ messages | join('+', attribute='role') }} "
        "{{ 'aXbX' | replace('X', '-') }} {{ 'aXbX' | replace('X', '-', 1) }} {{ [1, 2] | join }} "
        "{{ {'b': 1, 'a': '<é>'} | tojson }} {{ [1] | tojson(indent=1) }} {{ '%s-%02d' % ('a', 3) }} "
        "{{ 'x'.join(['a', 'b']) }} {{ '{:>4}'.format(7) }} {{ 2 ** 10 }} {{ 7 % 4 }} {{ dict(a=1).a }} {{ 1 ~ 'b' ~ 2.5 }}"
    )
    want = 'user user a-b- a-bX 12 {"b": 1, "a": "<é>"} [\n 1\n] a-03 axb    7 1024 3 1 1b2.5'
    assert render_chat(template, [{"role": "user", "content": ""}]) == want


def test_dates_are_rendered() -> None:
    assert render_chat("{{ strftime_now('%Y') }}", CONVERSATION).isdecimal()

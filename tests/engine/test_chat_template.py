"""render_chat: the prompts of transformers, a sandbox without holes, and an end to every template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

import labkit
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
TINY_ORACLE = AutoTokenizer.from_pretrained(TINY)
TINY_TOKENIZER = Tokenizer.from_directory(TINY)
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


def test_special_strings_are_known_to_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TINY_TOKENIZER.templates, "default", "{{ eos_token }}|{{ bos_token }}")
    assert render_chat(TINY_TOKENIZER, CONVERSATION) == "<|im_end|>|"


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


def test_limits_are_per_rendering_and_far_above_real_chats() -> None:
    messages = [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "word " * 200}] * 500
    for _ in range(2):
        assert len(render_chat(REASONING, messages, tools=[TOOL] * 50)) > 900_000

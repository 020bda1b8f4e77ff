"""From a list of chat messages to the prompt text, by the template that the checkpoint carries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2

from labkit.engine.template_limits import LimitError, check_size
from labkit.engine.template_sandbox import TemplateSandbox, limited_run
from labkit.engine.tokenizer import Tokenizer
from labkit.errors import LabkitError, RequestError, TemplateError

Message = Mapping[str, Any]

_OTHER_TEMPLATE = "Use the template of the original model, or complete the prompt as plain text."


def render_chat(
    source: Tokenizer | str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The prompt for a chat.

    source: a tokenizer with a template (its special strings are then known to it), or a template's text.
    messages: each with a `role` and a `content`, which is a text or a list of {"type": "text", "text": ...};
        everything else in them (tool_calls, reasoning_content, ...) is handed to the template.
    add_generation_prompt: end with the opening of the assistant's answer.
    tools: function descriptions; a template named "tool_use" is then preferred.
    variables: further names for the template, such as enable_thinking. Like messages and tools, JSON data.
    Raises RequestError for malformed messages; TemplateError if the template is missing, is broken, refuses
    the messages or goes over a limit.
    """
    data = {
        **(source.special_strings if isinstance(source, Tokenizer) else {}),
        "tools": None if tools is None else list(tools),
        **variables,
        "messages": _checked_messages(messages),
        "add_generation_prompt": add_generation_prompt,
    }
    return _render(_compile(_template_text(source, with_tools=bool(tools))), _plain_data(data))


def _template_text(source: Tokenizer | str, with_tools: bool) -> str:
    if isinstance(source, str):
        return source
    special = source.templates.get("tool_use") if with_tools else None
    text = special or source.chat_template
    if text is None:
        raise TemplateError("The model has no chat template.", cure="Complete a plain prompt instead of a chat.")
    return text


@lru_cache(maxsize=16)
def _compile(text: str) -> jinja2.Template:
    try:
        return TemplateSandbox().from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"The chat template is broken in line {error.lineno}: {error.message}.", cure=_OTHER_TEMPLATE
        ) from error
    except RecursionError as error:
        raise TemplateError("The chat template is nested too deeply.", cure=_OTHER_TEMPLATE) from error


def _render(template: jinja2.Template, data: dict[str, Any]) -> str:
    try:
        with limited_run():
            return _join_pieces(template, data)
    except LimitError as error:
        raise TemplateError(f"The chat template was stopped: {error.message}.", cure=_OTHER_TEMPLATE) from error
    except Exception as error:  # a template can raise anything that its expressions can
        raise _refusal(error) from error


def _join_pieces(template: jinja2.Template, data: dict[str, Any]) -> str:
    pieces, size = [], 0
    for piece in template.generate(**data):
        pieces.append(piece)
        size += len(piece)
        check_size(size)
    return "".join(pieces)


def _refusal(error: Exception) -> TemplateError:
    if type(error) is jinja2.TemplateError:  # what raise_exception raises: the template speaks to the user
        reason = str(error.message).rstrip(".")
        return TemplateError(
            f"The chat template refuses the messages: {reason}.", cure="Change the messages as it asks."
        )
    return TemplateError(f"The chat template failed: {type(error).__name__}: {error}.", cure=_OTHER_TEMPLATE)


def _plain_data(data: dict[str, Any]) -> dict[str, Any]:
    """A copy of the data in JSON types, so that no object's methods come within the template's reach."""
    try:
        return json.loads(json.dumps(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"The chat holds something that is not JSON: {error}.", cure="Give JSON data.") from error


def _checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise _malformed("The messages", "are no list, or an empty one")
    return [_checked_message(f"Message {i}", message) for i, message in enumerate(messages)]


def _checked_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _malformed(where, f"is a {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _malformed(where, f"has the role {role!r}")
    present = {name: value for name, value in message.items() if value is not None}
    return present | {"content": _content_text(where, message)}


def _content_text(where: str, message: Message) -> str:
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return ""  # an assistant that only calls tools says nothing
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise _malformed(where, f"has a content of type {type(content).__name__}")
    return "".join(_part_text(where, part) for part in content)


def _part_text(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text" or not isinstance(part.get("text"), str):
        raise _malformed(where, f"has a content part of type {kind!r} that is no text")
    return part["text"]


def _malformed(where: str, problem: str) -> LabkitError:
    return RequestError(
        f"{where} {problem}.",
        cure='Give a list of {"role": ..., "content": ...}; a content is a text or a list of {"type": "text"} parts.',
    )

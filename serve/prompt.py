"""From a chat request to what the engine takes: token ids and sampling parameters."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from labkit.engine.chat_template import render_chat
from labkit.engine.core import NO_TOKENIZER, Engine
from labkit.engine.sampling_params import SamplingParams
from labkit.errors import RequestError, TokenizerError
from labkit.ops.layout import PAGE_SIZE
from serve.protocol import ChatRequest

# What the server itself gives to the template, and what the template's own call takes.
RESERVED = ("self", "source", "messages", "tools", "add_generation_prompt")
SPECIAL = ("max_tokens", "logprobs")  # do not map one to one


def prompt_ids(engine: Engine, request: ChatRequest) -> list[int]:
    """The conversation through the model's chat template, as token ids.

    Raises TokenizerError, TemplateError or RequestError. Takes time for a long conversation: not for an event loop.
    """
    if engine.tokenizer is None:
        raise TokenizerError("This model has no tokenizer, so it cannot chat.", cure=NO_TOKENIZER)
    reserved = sorted(set(RESERVED) & set(request.chat_template_kwargs))
    if reserved:
        raise RequestError(f"chat_template_kwargs may not set {', '.join(reserved)}.", cure="Leave them out.")
    messages = [message.for_template() for message in request.messages]
    return engine.tokenizer.encode(render_chat(engine.tokenizer, messages, **request.chat_template_kwargs))


def sampling_params(engine: Engine, request: ChatRequest, prompt_len: int) -> SamplingParams:
    """The request's sampling settings; without a limit of its own the answer may fill what the prompt leaves.

    Raises ConfigError for values out of range.
    """
    same = [f.name for f in fields(SamplingParams) if f.name not in SPECIAL]
    given: dict[str, Any] = {name: getattr(request, name) for name in same if getattr(request, name) is not None}
    limits = (request.max_tokens, request.max_completion_tokens, _room(engine, prompt_len))
    max_tokens = next(limit for limit in limits if limit is not None)
    return SamplingParams(max_tokens=max_tokens, logprobs=_alternatives(request), **given)


def _room(engine: Engine, prompt_len: int) -> int:
    """Tokens that still fit; at least one, so that a prompt too long is refused as such."""
    return max(1, min(engine.max_seq_len, engine.num_pages * PAGE_SIZE) - prompt_len)


def _alternatives(request: ChatRequest) -> int | None:
    return (request.top_logprobs or 0) if request.logprobs else None

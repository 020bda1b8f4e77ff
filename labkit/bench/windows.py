"""Cutting a long text into overlapping windows so that each token is scored once, with context before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labkit.engine.llm import LLM
from labkit.errors import ConfigError


@dataclass(frozen=True)
class Window:
    """Tokens [start, end) of a text, of which those from ``first`` on are scored here."""

    start: int
    first: int
    end: int


def sliding_windows(count: int, window: int, stride: int) -> Iterator[Window]:
    """Windows of at most ``window`` tokens over ``count`` tokens, each ``stride`` further on.

    Token 0 has nothing before it and is scored nowhere; every other token is scored exactly once, with at least
    ``window - stride`` tokens of context as soon as the text is that long.
    Raises ConfigError unless 1 <= stride < window and count >= 2.
    """
    if window < 2 or not 1 <= stride < window:
        raise ConfigError(
            f"window is {window} and stride {stride}.", cure="The stride is at least 1 and smaller than the window."
        )
    if count < 2:
        raise ConfigError(f"The text has {count} token(s).", cure="Give a text of at least two tokens.")
    first = 1
    for start in range(0, count, stride):
        end = min(start + window, count)
        yield Window(start, first, end)
        if end == count:
            return
        first = end


def text_tokens(llm: LLM, text: str, max_tokens: int | None) -> tuple[list[int], list[int]]:
    """(the begin token that the model asks for, if any; the token ids of the text, cut to ``max_tokens``).

    "<|im_end|>" and its like in the text are read as plain characters. Raises ConfigError for a wrong limit.
    """
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 2):
        raise ConfigError(f"max_tokens is {max_tokens!r}.", cure="Give a whole number from 2, or nothing for all.")
    return llm.tokenizer.encode_prompt(""), llm.tokenizer.encode(text, special=False)[:max_tokens]


def check_room(llm: LLM, window: int, prefix: int) -> None:
    """Raises ConfigError if the engine cannot take a window at once (it always leaves room for one more token)."""
    room = llm.engine.max_seq_len - prefix - 1
    if window > room:
        raise ConfigError(f"window is {window}, the engine takes {room} tokens.", cure=f"Use at most {room}.")

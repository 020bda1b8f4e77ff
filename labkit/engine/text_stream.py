"""Tokens in, text out: never half a character, never the beginning of a stop string."""

from __future__ import annotations

import codecs
from typing import NamedTuple, Protocol

from labkit.engine.sampling_params import SamplingParams


class TokenBytes(Protocol):
    """What the stream needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class StopMatch(NamedTuple):
    """A stop string and where it lies; smaller is earlier."""

    end: int
    start: int
    stop: str


class TextStream:
    """The text of one answer, released piece by piece; the pieces joined are `text`.

    Bytes decide what a character is: an incomplete but possible UTF-8 sequence waits for its next token,
    an impossible byte becomes U+FFFD at once. The longest suffix that may still grow into a stop string
    waits as well. The stop string that is complete first ends the text, which therefore does not depend on
    how the text was cut into tokens. It counts only if it completes at token number min_tokens or later.

    Push every token of the answer except the end token that closed it.
    """

    def __init__(self, tokenizer: TokenBytes, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._num_tokens = 0
        self.text = ""
        self.stop_reason: str | None = None

    @property
    def stopped(self) -> bool:
        """True once a stop string has ended the text."""
        return self.stop_reason is not None

    def push(self, token_id: int) -> str:
        """Take the next token; returns the text that is now safe to show ("" after the stop)."""
        self._num_tokens += 1
        hidden = self._params.skip_special_tokens and self._tokenizer.is_special(token_id)
        return self._take(self._decoder.decode(b"" if hidden else self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """The answer is over: returns what was held back, half a character as U+FFFD."""
        tail = self._take(self._decoder.decode(b"", final=True))
        return tail + self._release(len(self._held))

    def _take(self, piece: str) -> str:
        if self.stopped:
            return ""
        seen = len(self._held)
        self._held += piece
        match = self._first_match(seen)
        if match is not None:
            return self._stop_at(match)
        return self._release(len(self._held) - self._may_become_stop())

    def _first_match(self, seen: int) -> StopMatch | None:
        """The stop string that completes first behind the `seen` characters of earlier tokens."""
        if self._num_tokens < self._params.min_tokens:
            return None
        found = (self._find(stop, seen) for stop in self._params.stop)
        return min((match for match in found if match is not None), default=None)

    def _find(self, stop: str, seen: int) -> StopMatch | None:
        start = self._held.find(stop, max(0, seen - len(stop) + 1))
        return None if start < 0 else StopMatch(start + len(stop), start, stop)

    def _stop_at(self, match: StopMatch) -> str:
        self.stop_reason = match.stop
        shown = self._release(match.end if self._params.include_stop_str_in_output else match.start)
        self._held = ""
        return shown

    def _may_become_stop(self) -> int:
        """Length of the longest suffix of the held text that is the beginning of a stop string."""
        return max((_overlap(self._held, stop) for stop in self._params.stop), default=0)

    def _release(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)

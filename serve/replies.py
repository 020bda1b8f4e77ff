"""The objects of OpenAI's API that the server sends."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.engine.outputs import Completion
from labkit.engine.request import Request, Update
from labkit.engine.sampler import SampledToken
from labkit.engine.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What all parts of the reply to one chat request have in common."""

    model: str
    tokenizer: Tokenizer
    prompt_tokens: int
    include_usage: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, completions: Sequence[Completion]) -> Json:
        """All answers at once."""
        choices = [self._whole_choice(completion) for completion in completions]
        usage = self._usage(sum(len(completion.token_ids) for completion in completions))
        return self._object("chat.completion", choices) | {"usage": usage}

    def first_chunk(self, index: int) -> Json:
        """Opens one answer's stream."""
        return self._chunk(index, {"role": "assistant", "content": ""})

    def news_chunks(self, update: Update) -> list[Json]:
        """Its text, if there is any to show, and its end."""
        index, wants_logprobs = update.request.sampling.choice, update.request.params.logprobs is not None
        chunks = []
        if update.text or (wants_logprobs and update.token):
            logprobs = self._logprobs([update.token]) if wants_logprobs and update.token else None
            chunks.append(self._chunk(index, {"content": update.text}, logprobs))
        if update.finished:
            chunks.append(self._chunk(index, {}, finish_reason=update.request.seq.finish_reason))
        return chunks

    def usage_chunk(self, requests: Sequence[Request]) -> Json:
        """Closes the stream where usage was asked for: the counts of all answers together."""
        usage = self._usage(sum(len(request.tokens) for request in requests))
        return self._object("chat.completion.chunk", []) | {"usage": usage}

    def _chunk(self, index: int, delta: Json, logprobs: Json | None = None, finish_reason: str | None = None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._object("chat.completion.chunk", [choice]) | ({"usage": None} if self.include_usage else {})

    def _whole_choice(self, completion: Completion) -> Json:
        logprobs = None if completion.logprobs is None else self._logprobs(completion.logprobs)
        return {
            "index": completion.index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": logprobs,
            "finish_reason": completion.finish_reason,
        }

    def _object(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _usage(self, completion_tokens: int) -> Json:
        total = self.prompt_tokens + completion_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}

    def _logprobs(self, tokens: Sequence[SampledToken]) -> Json:
        """One entry for each generated token, the end token included, as in usage."""
        return {"content": [self._token_entry(token) for token in tokens], "refusal": None}

    def _token_entry(self, token: SampledToken) -> Json:
        assert token.logprob is not None  # the sampler reports it wherever logprobs were asked for
        top = [self._scored(other, logprob) for other, logprob in token.top]
        return self._scored(token.token, token.logprob) | {"top_logprobs": top}

    def _scored(self, token: int, logprob: float) -> Json:
        """The bytes tell what the text cannot: a token may hold half a character."""
        raw = self.tokenizer.token_bytes(token)
        return {"token": raw.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(raw)}


def model_card(name: str, created: int) -> Json:
    """An entry of /v1/models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "labkit"}

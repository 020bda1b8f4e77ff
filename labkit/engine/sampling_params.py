"""What a user may ask of one request: ``SamplingParams``, checked when it is made."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from labkit.errors import ConfigError

MAX_LOGPROBS = 20  # as many alternatives per token as the OpenAI API allows


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings of one request.

    temperature: 0 takes the most likely token; above 0 divides the logits.
    top_k, top_p, min_p: keep the k best; the smallest set of mass p; what reaches min_p times the best.
        (0, 1 and 0 switch them off.) They are applied in this order, after the temperature.
    presence_penalty, frequency_penalty: subtracted once, or once per occurrence, for tokens of the output.
    repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output.
    logit_bias: token id -> amount added to its logit, in [-100, 100].
    seed: makes the request reproducible whatever runs beside it; None draws one.
    n: number of independent answers to the same prompt.
    max_tokens, min_tokens: tokens generated at most; tokens that come before any end token or stop.
    stop, stop_token_ids: strings and tokens that end the answer. The stop string is cut off
        unless include_stop_str_in_output.
    ignore_eos: do not end at the model's own end tokens.
    logprobs: None, or how many alternatives to report with each token (0 reports the chosen one only).
    skip_special_tokens: leave special tokens out of the text.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    max_tokens: int = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _number(self, "temperature", 0.0, 100.0)
        _integer(self, "top_k", 0, 2**31)
        _number(self, "top_p", 0.0, 1.0, low_open=True)
        _number(self, "min_p", 0.0, 1.0)
        _number(self, "presence_penalty", -2.0, 2.0)
        _number(self, "frequency_penalty", -2.0, 2.0)
        _number(self, "repetition_penalty", 0.0, math.inf, low_open=True)
        _integer(self, "n", 1, 128)
        _integer(self, "max_tokens", 1, 2**31)
        _integer(self, "min_tokens", 0, self.max_tokens)
        if self.seed is not None:
            _integer(self, "seed", -(2**63), 2**64 - 1)
        if self.logprobs is not None:
            _integer(self, "logprobs", 0, MAX_LOGPROBS)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "true or false")
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """True if every token is the argmax of the (shaped) logits."""
        return self.temperature == 0.0

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all settings."""
        return frozenset(f.name for f in fields(cls))


def _wrong(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}.", cure=f"Give {expected}.")


def _number(params: SamplingParams, name: str, low: float, high: float, low_open: bool = False) -> None:
    value = getattr(params, name)
    expected = f"a number {'above' if low_open else 'from'} {low:g}" + ("" if high == math.inf else f" up to {high:g}")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise _wrong(name, value, expected)
    if not low <= value <= high or (low_open and value == low):
        raise _wrong(name, value, expected)


def _integer(params: SamplingParams, name: str, low: int, high: int) -> None:
    value = getattr(params, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(name, value, f"a whole number from {low} to {high}")


def _strings(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text for text in texts):
        raise _wrong(name, value, "a text or a list of texts, none of them empty")
    return tuple(texts)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = (value,) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(ids, (list, tuple)) or not all(_is_token_id(i) for i in ids):
        raise _wrong(name, value, "token ids, whole numbers from 0")
    return tuple(ids)


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _wrong("logit_bias", value, "a mapping from token id to a number from -100 to 100")
    biases: dict[int, float] = {}
    for key, amount in value.items():
        token = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key  # JSON keys are texts
        valid = not isinstance(amount, bool) and isinstance(amount, (int, float)) and -100 <= amount <= 100
        if not _is_token_id(token) or not valid:
            raise _wrong("logit_bias", {key: amount}, "token ids from 0 with numbers from -100 to 100")
        if token in biases:
            raise _wrong("logit_bias", {key: amount}, "each token id once")
        biases[token] = float(amount)
    return biases

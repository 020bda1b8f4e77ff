"""What SamplingParams accepts and refuses; every refusal names the field and the cure."""

from __future__ import annotations

from typing import Any

import pytest

from labkit import SamplingParams
from labkit.errors import ConfigError

REFUSED: dict[str, list[Any]] = {
    "temperature": [-0.1, "hot", None, float("nan"), float("inf"), True],
    "top_k": [-1, 1.5, "3", None],
    "top_p": [0, -0.5, 1.1, "all", None],
    "min_p": [-0.1, 1.01, None],
    "presence_penalty": [-2.1, 2.1, "x"],
    "frequency_penalty": [-2.1, 2.1, None],
    "repetition_penalty": [0, -1, "x", float("nan")],
    "seed": ["7", 1.0, 2**64, True],
    "n": [0, -1, 1.0, 129, None],
    "max_tokens": [0, -5, 2.0, "many", None],
    "min_tokens": [-1, 257, 0.5],
    "stop": ["", [""], [1], 7, {"a"}],
    "stop_token_ids": [[-1], ["a"], "12", [True]],
    "logprobs": [-1, 21, 1.0, True],
    "logit_bias": [
        [1],
        {-1: 0.0},
        {1: 101},
        {1: "x"},
        {"a": 1},
        {1: None},
        {1: True},
        {"5": 1, "05": 2},
        {5: 1, "5": 1},
    ],
    "ignore_eos": [1, "yes", None],
    "include_stop_str_in_output": [0],
    "skip_special_tokens": ["no"],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in REFUSED.items() for v in values])
def test_wrong_values_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*Give "):
        SamplingParams(**{name: value})


def test_every_setting_has_a_refusal_above() -> None:
    assert SamplingParams.names() == set(REFUSED)


def test_friendly_forms_are_taken() -> None:
    params = SamplingParams(stop="end", stop_token_ids=3, logit_bias={"5": 1, 6: -100.0}, seed=-1)
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("end",), (3,), {5: 1.0, 6: -100.0})
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2]).stop == ("a", "b")
    assert SamplingParams(temperature=0).greedy and not SamplingParams().greedy


def test_an_absurd_key_is_refused_not_parsed() -> None:
    with pytest.raises(ConfigError, match="logit_bias"):
        SamplingParams(logit_bias={"9" * 5000: 1})

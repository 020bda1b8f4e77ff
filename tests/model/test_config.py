"""config.json with broken fields: each is a CheckpointError that names the field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labkit.errors import CheckpointError, LabkitError, UnsupportedModelError
from labkit.model.config import Llama3Scaling, LlamaConfig, Qwen35Config, parse_config

LLAMA = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
LINEAR = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
QWEN = LLAMA | {"model_type": "qwen3_5", "head_dim": 16} | dict.fromkeys(LINEAR, 2)
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
NO_NUMBERS = ["x", -1.0, 0, math.nan, math.inf, True, [1.0], {}, 10**400]


def refused(config: dict[str, Any], named: str, kind: type[LabkitError] = CheckpointError) -> None:
    with pytest.raises(kind, match=named) as caught:
        parse_config(config)
    assert caught.value.cure


def test_the_configs_are_sound_before_they_are_broken() -> None:
    llama, qwen = parse_config(LLAMA), parse_config(QWEN)
    assert isinstance(llama, LlamaConfig) and isinstance(qwen, Qwen35Config)
    assert (llama.rms_norm_eps, llama.rope.theta, llama.rope.scaling, llama.eos_token_ids) == (1e-6, 10_000.0, None, ())
    assert (qwen.rope.rotary_dim, qwen.num_mtp_layers) == (4, 0)


@pytest.mark.parametrize("value", [None, *NO_NUMBERS])
def test_rms_norm_eps(value: Any) -> None:
    refused(LLAMA | {"rms_norm_eps": value}, "rms_norm_eps")


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("name", ["rope_theta", "partial_rotary_factor"])
def test_rotary_numbers_nested_and_flat(name: str, value: Any) -> None:
    refused(QWEN | {name: value}, name)
    refused(QWEN | {"rope_parameters": {name: value}}, name)


@pytest.mark.parametrize("share", [0.01, 0.2, 1.5, 1e308])
def test_shares_that_give_no_even_number_of_dimensions(share: float) -> None:
    refused(QWEN | {"partial_rotary_factor": share}, "partial_rotary_factor")


@pytest.mark.parametrize("value", ["abc", [1], 5, "", [], False])
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_rotary_settings_that_are_no_object(name: str, value: Any) -> None:
    refused(LLAMA | {name: value}, name)


def test_nulls_in_rotary_settings_mean_absent() -> None:
    nulls = {"rope_type": None, "rope_theta": None, "partial_rotary_factor": None}
    assert parse_config(LLAMA | {"rope_parameters": nulls}) == parse_config(LLAMA | {"rope_scaling": None})
    assert parse_config(LLAMA | {"rope_parameters": nulls, "rope_theta": 5e5}).rope.theta == 5e5


@pytest.mark.parametrize("value", [None, *NO_NUMBERS])
def test_linear_factor(value: Any) -> None:
    refused(LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": value}}, "factor")


@pytest.mark.parametrize("value", [None, *NO_NUMBERS])
@pytest.mark.parametrize("name", sorted(set(LLAMA3) - {"rope_type"}))
def test_llama3_fields(name: str, value: Any) -> None:
    refused(LLAMA | {"rope_parameters": LLAMA3 | {name: value}}, name)


def test_llama3_fields_in_order() -> None:
    assert parse_config(LLAMA | {"rope_parameters": LLAMA3}).rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    refused(LLAMA | {"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor")


@pytest.mark.parametrize("value", ["abc", {}, [None], [True], True, 1.5, [[1]], ["1"]])
def test_end_tokens_that_are_none(value: Any) -> None:
    refused(LLAMA | {"eos_token_id": value}, "eos_token_id")


@pytest.mark.parametrize("value, ids", [(None, ()), (3, (3,)), ([3, 4], (3, 4)), (-1, (-1,))])
def test_end_tokens(value: Any, ids: tuple[int, ...]) -> None:
    assert parse_config(LLAMA | {"eos_token_id": value}).eos_token_ids == ids


@pytest.mark.parametrize("value", [5, [["a"]], "ab", {}, [], ["full_attention"], [None, None]])
def test_layer_types(value: Any) -> None:
    refused(QWEN | {"layer_types": value}, "layer_types")


@pytest.mark.parametrize("value", ["x", -1, 1.5, True, []])
def test_mtp_layers(value: Any) -> None:
    refused(QWEN | {"mtp_num_hidden_layers": value}, "mtp_num_hidden_layers")


@pytest.mark.parametrize("value", ["2", 2.0, 0, -1, True, None, 10**30])
@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_sizes(name: str, value: Any) -> None:
    refused(LLAMA | {name: value}, name)
    refused(QWEN | {name: value}, name)


@pytest.mark.parametrize("window", [1, 127])
def test_sliding_windows_that_would_hide_something(window: int) -> None:
    refused(LLAMA | {"sliding_window": window}, "sliding_window", UnsupportedModelError)


def test_sliding_windows_without_effect_or_sense() -> None:
    for window in (None, 128, 4096):
        assert parse_config(LLAMA | {"sliding_window": window}) == parse_config(LLAMA)
    refused(LLAMA | {"sliding_window": "x"}, "sliding_window")

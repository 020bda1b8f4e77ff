"""The ladders: what is registered is what lies in cuda/, it compiles for the V100, and nothing spills."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from labkit.device.build_all import all_rungs, build_all, for_model
from labkit.device.ladder import Ladder
from labkit.device.sources import read_rung, source_root
from labkit.errors import KernelArgumentError
from labkit.model.checkpoint import open_checkpoint
from labkit.model.config import LlamaConfig, ModelConfig, parse_config
from labkit.model.resolve import resolve_model
from labkit.ops.ladders import LADDERS

QWEN_27B = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": False,
    },
}

UNASKED = {
    "softmax_online",
    "gemv_int8",
    "rope",
    "kv_write",
}  # no model runs these: they are taught, or parts of others


@pytest.fixture(scope="module")
def qwen() -> ModelConfig:
    return parse_config(QWEN_27B)


def test_every_source_is_a_rung_of_a_ladder() -> None:
    files = {(path.parent.name, path.stem) for path in source_root().glob("*/*.cu")}
    assert files == {(ladder.op, rung) for ladder in LADDERS.values() for rung in ladder.rungs}


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=lambda ladder: ladder.op)
def test_rungs_compile_without_spills(ladder: Ladder) -> None:
    rows = build_all(all_rungs([ladder]))
    assert len(rows) == len(ladder.rungs) * len(ladder.default_macros) * len(ladder.entries)
    assert not [row.name for row in rows if row.spill_stores or row.spill_loads]


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
def test_what_a_large_model_needs_compiles_without_spills(qwen: ModelConfig, tp_size: int) -> None:
    rows = build_all(for_model(LADDERS.values(), qwen, tp_size, "fp16"))
    assert {row.op for row in rows} == set(LADDERS) - UNASKED
    assert not [row.name for row in rows if row.spill_stores or row.spill_loads]


def test_specialisations_divide_the_heads_among_the_ranks(qwen: ModelConfig) -> None:
    assert LADDERS["silu_mul"].specialisations(qwen, 2, "auto")[0]["INNER"] == 8704
    whole, eighth = (LADDERS["qk_norm_rope_kv"].specialisations(qwen, tp, "auto") for tp in (1, 8))
    assert whole == eighth  # which learns when it runs how many heads there are


@pytest.mark.parametrize("model", ["labkit-tiny", "smollm2"])
def test_a_wheel_carries_what_the_small_models_need(model: str) -> None:
    """So they run on the simulator where there is no compiler."""
    config = parse_config(open_checkpoint(resolve_model(model)).config)
    for ladder in LADDERS.values():
        assert all(macros in ladder.default_macros for macros in ladder.specialisations(config, 1, "auto"))


@pytest.mark.parametrize(("name", "bits"), [("auto", (16, 16)), ("fp16", (16, 16)), ("int8", (8, 8)), ("k8v4", (8, 4))])
def test_pages_of_every_format_are_written_by_kernels(qwen: ModelConfig, name: str, bits: tuple[int, int]) -> None:
    [macros] = LADDERS["qk_norm_rope_kv"].specialisations(qwen, 1, name)
    assert (macros["K_BITS"], macros["V_BITS"]) == bits
    assert (macros["HEAD_DIM"], macros["ROTARY_DIM"], macros["Q_NORM"], macros["K_NORM"]) == (256, 64, 1, 1)


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=lambda ladder: ladder.op)
def test_a_rung_says_what_it_is(ladder: Ladder) -> None:
    """The first line is the idea, the second the cost that it removes."""
    for rung in ladder.rungs:
        lines = read_rung(ladder.op, rung).text.splitlines()
        assert lines[0].startswith("// Idea: ")
        assert lines[1].startswith("// Removes ")


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=lambda ladder: ladder.op)
def test_a_missing_macro_is_named(ladder: Ladder) -> None:
    for rung in ladder.rungs:
        text = read_rung(ladder.op, rung).text
        [error] = re.findall(r'#error "(\w+ is compiled with -D .*)"', text)
        assert all(macro in error for macro in ladder.default_macros[0])


def test_llama_has_no_norms_and_heads_that_fit_or_are_named() -> None:
    config = parse_config(
        {
            "model_type": "llama",
            "vocab_size": 100,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 128,
        }
    )
    assert isinstance(config, LlamaConfig)
    specialisations = LADDERS["qk_norm_rope_kv"].specialisations
    with pytest.raises(KernelArgumentError, match="heads of 16 elements") as caught:
        specialisations(config, 1, "auto")
    assert "64, 128, 256" in caught.value.cure
    [macros] = specialisations(replace(config, head_dim=64, rope=replace(config.rope, rotary_dim=64)), 1, "auto")
    assert (macros["Q_NORM"], macros["K_NORM"], macros["ROTARY_DIM"]) == (0, 0, 64)

"""Logits of random models against transformers, in fp32: whole prompts, chunks, single tokens, ragged batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.models import assert_same_logits, llama, oracle_logits, qwen35, random_ids, saved

from labkit import LLM

TOKENS = 150  # not a multiple of the 64 that pages and chunks are made of
CHUNKS = (4096, 1, 7, 64, 100)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, Any] = {
    "llama": lambda: llama(),
    "llama, tied, one key head": lambda: llama(
        tie_word_embeddings=True, hidden_size=48, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=3
    ),
    "llama, no groups, one layer": lambda: llama(
        hidden_size=72, num_attention_heads=6, num_key_value_heads=6, head_dim=8, num_hidden_layers=1
    ),
    "llama 3 rope": lambda: llama(rope_parameters=LLAMA3),
    "llama linear rope": lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}),
    "qwen3.5": lambda: qwen35(),
    "qwen3.5, tied, 5 layers": lambda: qwen35(tie_word_embeddings=True, num_hidden_layers=5, num_key_value_heads=1),
    "qwen3.5, no attention layer": lambda: qwen35(num_hidden_layers=2),
    "qwen3.5, equal heads": lambda: qwen35(linear_num_key_heads=3, linear_num_value_heads=3, num_key_value_heads=4),
    "qwen3.5, real head sizes": lambda: qwen35(
        head_dim=256,
        num_attention_heads=2,
        num_key_value_heads=1,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_value_heads=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_transformers_however_the_prompt_is_cut(name: str, seed: int, tmp_path: Path) -> None:
    model = MODELS[name]()
    path, ids = saved(model, tmp_path), random_ids(160, TOKENS)
    expected = oracle_logits(model, ids)
    for chunk in CHUNKS:
        with LLM(path, dtype="float32", prefill_tokens=chunk) as llm:
            assert_same_logits(llm.logits(ids), expected)


@pytest.mark.parametrize("name", ["llama", "qwen3.5"])
def test_ragged_sequences_together_match_each_alone(name: str, seed: int, tmp_path: Path) -> None:
    model = MODELS[name]()
    prompts = [random_ids(160, n) for n in (1, 5, 63, 64, 65, 100, 130, 150)]
    with LLM(saved(model, tmp_path), dtype="float32", prefill_tokens=90, mixed_prefill_tokens=50) as llm:
        for ids, rows in zip(prompts, llm.engine.logits(prompts), strict=True):
            assert_same_logits(rows, oracle_logits(model, ids))


def test_labkit_tiny_matches_transformers(seed: int, tiny_path: Path) -> None:
    from transformers import Qwen3_5ForCausalLM

    model = Qwen3_5ForCausalLM.from_pretrained(tiny_path, dtype="float32").eval()
    prompts = [random_ids(8000, n) for n in (150, 3, 64, 77, 20, 129, 91, 40)]
    expected = [oracle_logits(model, ids) for ids in prompts]
    for chunk in CHUNKS:
        with LLM(tiny_path, dtype="float32", prefill_tokens=chunk) as llm:
            assert_same_logits(llm.logits(prompts[0]), expected[0])
    with LLM(tiny_path, dtype="float32") as llm:
        for rows, theirs in zip(llm.engine.logits(prompts), expected, strict=True):
            assert_same_logits(rows, theirs)


@pytest.mark.parametrize("name", ["llama", "qwen3.5"])
def test_decoding_token_by_token_gives_the_tokens_of_transformers(name: str, seed: int, tmp_path: Path) -> None:
    """Greedy decoding, fed back: each token is the argmax of transformers' logits for the text so far."""
    from labkit import SamplingParams

    model = MODELS[name]()
    prompts = [random_ids(160, n) for n in (3, 64, 90)]
    with LLM(saved(model, tmp_path), dtype="float32") as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=70))
    for prompt, output in zip(prompts, outputs, strict=True):
        best = oracle_logits(model, prompt + output.token_ids)[len(prompt) - 1 : -1].topk(2, dim=-1)
        for i, token in enumerate(output.token_ids):
            near_tie = best.values[i, 0] - best.values[i, 1] < 4e-3
            assert token == best.indices[i, 0] or (near_tie and token == best.indices[i, 1])

"""SmolLM2-135M-Instruct, a real pretrained INT4 model, against transformers' own reading of the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from helpers.packers import gguf_name, split_heads
from transformers import LlamaConfig, LlamaForCausalLM

from labkit import LLM, SamplingParams
from labkit.bench.perplexity import compare
from labkit.bench.texts import DEFAULT_TEXT

pytestmark = pytest.mark.slow

TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "Photosynthesis is the process by which",
    "1, 2, 3, 4, 5,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "In 1969, the first human",
]
LOGIT_TOLERANCE = 2e-3


def test_64_greedy_tokens_on_8_prompts_equal_transformers(
    smollm2_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    torch.set_num_threads(2)
    oracle = oracle_from_gguf(smollm2_path)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(smollm2_path, dtype="float32") as llm:
        outputs = llm.generate(PROMPTS, params)
    ties = sum(check_greedy(oracle, output.prompt_ids, output.token_ids) for output in outputs)
    record_property("smollm2_greedy_tokens_compared", TOKENS * len(PROMPTS))
    record_property("smollm2_greedy_near_ties", ties)


def oracle_from_gguf(path: Path) -> LlamaForCausalLM:
    """transformers' Llama with the weights as the gguf package dequantizes them; shares nothing with our loader."""
    reader = gguf.GGUFReader(path)
    value = {key: field.contents() for key, field in reader.fields.items() if key.startswith("llama.")}
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    config = LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=value["llama.embedding_length"],
        intermediate_size=value["llama.feed_forward_length"],
        num_hidden_layers=value["llama.block_count"],
        num_attention_heads=value["llama.attention.head_count"],
        num_key_value_heads=value["llama.attention.head_count_kv"],
        rms_norm_eps=value["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": value["llama.rope.freq_base"]},
        max_position_embeddings=value["llama.context_length"],
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).float().eval()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        array = tensors[gguf_name(name)].reshape(parameter.shape)
        count = heads.get(name.split(".")[-2])
        parameter.copy_(torch.from_numpy(split_heads(array, count) if count else array))
    return model


def check_greedy(oracle: Any, prompt: list[int], answer: list[int]) -> int:
    """Each token is the oracle's best after the same text. Returns how often the best two all but tied."""
    rows = oracle(torch.tensor([prompt + answer]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    best = rows.topk(2, dim=-1)
    tied = best.values[:, 0] - best.values[:, 1] < 2 * LOGIT_TOLERANCE
    for i, token in enumerate(answer):
        assert token == best.indices[i, 0] or (tied[i] and token == best.indices[i, 1]), f"token {i}"
    return int(tied.sum())


def test_bf16_with_the_int4_kernel_stays_near_fp32(
    smollm2_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    torch.set_num_threads(2)
    text = DEFAULT_TEXT.read_text()
    with LLM(smollm2_path) as fast, LLM(smollm2_path, dtype="float32") as exact:
        result = compare(fast, exact, text, window=512, stride=256, max_tokens=1024)
    record_property("smollm2_auto_argmax_agreement", result.argmax_agreement)
    record_property("smollm2_auto_mean_kl_nats", result.mean_kl)
    assert result.argmax_agreement > 0.95 and result.mean_kl < 0.01


def test_it_knows_the_capital_of_france(smollm2_path: Path) -> None:
    with LLM(smollm2_path) as llm:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        assert "Paris" in llm.chat(question, SamplingParams(temperature=0, max_tokens=32)).text

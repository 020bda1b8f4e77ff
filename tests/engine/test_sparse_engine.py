"""Sparse prefill in the engine: only where it was asked for, only in prefill, and exact when it keeps everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, random_ids, saved
from torch import Tensor

from labkit import LLM, SamplingParams
from labkit.device import Kernel
from labkit.engine.config import EngineConfig
from labkit.errors import ConfigError
from labkit.model import layers

EXACT: dict[str, Any] = {"executor": "torch", "dtype": "float32"}
SPARSE: dict[str, Any] = {"sparse_prefill": True, "sparse_mass": 0.4, "sparse_recent": 1, "sparse_threshold": 200}
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    return saved(llama(), tmp_path)


def answered(model: Path, prompt: list[int], **settings: Any) -> tuple[Tensor, list[int]]:
    """The logits of the prompt and the tokens behind it."""
    with LLM(model, **EXACT, **settings) as llm:
        return llm.logits(prompt), llm.generate(prompt, GREEDY)[0].completions[0].token_ids


def test_it_leaves_pages_out_and_a_dense_engine_beside_it_does_not_notice(model: Path, seed: int) -> None:
    prompt = random_ids(160, 900)
    logits, tokens = answered(model, prompt)
    with LLM(model, **EXACT) as dense, LLM(model, **EXACT, **SPARSE) as sparse:
        ours = sparse.logits(prompt)
        assert torch.equal(dense.logits(prompt), logits)
        assert dense.generate(prompt, GREEDY)[0].completions[0].token_ids == tokens
    moved = (ours - logits).norm(dim=-1) / logits.norm(dim=-1)
    assert float(moved[:192].max()) < 1e-5, "rows of tiles below the threshold"
    assert float(moved[256:].max()) > 1e-3, "nothing was left out"


def test_with_all_mass_or_below_the_threshold_it_is_dense_bit_for_bit(model: Path, seed: int) -> None:
    prompt = random_ids(160, 400)
    logits, tokens = answered(model, prompt)
    for changes in ({"sparse_mass": 1.0}, {"sparse_threshold": 401}):
        ours, same = answered(model, prompt, **{**SPARSE, **changes})
        assert torch.equal(ours, logits) and same == tokens


def test_decoding_is_dense(model: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, choose = list[int](), layers.choose_pages

    def noting(q: Tensor, *others: Any, **named: Any) -> Any:
        rows.append(len(q))
        return choose(q, *others, **named)

    monkeypatch.setattr(layers, "choose_pages", noting)
    with LLM(model, **EXACT, **SPARSE, prefill_tokens=256) as llm:
        llm.generate(random_ids(160, 600), GREEDY)
    assert rows == [256, 256, 256, 256, 88, 88]  # two layers; seven steps of decoding asked for nothing


def test_its_scores_run_on_the_kernels(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "num_hidden_layers": 1}
    path, launched, launch = saved(llama(**sizes), tmp_path), list[str](), Kernel.launch

    def noting(self: Kernel, *arguments: Any) -> None:
        launched.append(self.entry)
        launch(self, *arguments)

    monkeypatch.setattr(Kernel, "launch", noting)
    with LLM(path, executor="sim", **{**SPARSE, "sparse_threshold": 64}) as llm:
        logits = llm.logits(random_ids(160, 200))
    assert launched.count("sparse_scores") == 2 and bool(logits.isfinite().all())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sparse_mass": 0.5}, "sparse_mass without sparse_prefill"),
        ({"sparse_sink": 1, "sparse_recent": 0}, "sparse_sink and sparse_recent without sparse_prefill"),
        ({"sparse_prefill": 1}, "sparse_prefill is 1"),
        ({"sparse_prefill": True, "sparse_mass": 0.0}, "sparse_mass is 0.0"),
        ({"sparse_prefill": True, "sparse_mass": 1.5}, "sparse_mass is 1.5"),
        ({"sparse_prefill": True, "sparse_sink": -1}, "sparse_sink is -1"),
        ({"sparse_prefill": True, "sparse_recent": "4"}, "sparse_recent is '4'"),
        ({"sparse_prefill": True, "sparse_threshold": 0}, "sparse_threshold is 0"),
        ({"sparse_prefill": True, "prefill_tokens": 63}, "prefill_tokens is 63, but sparse prefill works on tiles"),
        ({"sparse_prefill": True, "mixed_prefill_tokens": 1}, "mixed_prefill_tokens is 1, but"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineConfig(**settings)

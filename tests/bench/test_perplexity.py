"""Perplexity against transformers' logits on the same windows, and what the KV dtype does to it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from helpers.models import llama, oracle_logits, qwen35, saved
from helpers.vocabulary import byte_level_core, write_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from labkit import LLM
from labkit.bench.perplexity import compare, perplexity
from labkit.bench.windows import sliding_windows
from labkit.errors import ConfigError, TokenizerError

WORDS = "the cat sat on the mat and the héllo wörld 😀 did def f(x):\n    return x <|end|> "


@pytest.fixture(scope="session")
def text() -> str:
    """The fixed public-domain text of the package."""
    return (files("labkit") / "assets" / "text" / "lincoln-1862.txt").read_text(encoding="ascii")


@given(
    count=st.integers(2, 300),
    sizes=st.integers(2, 80).flatmap(lambda window: st.tuples(st.just(window), st.integers(1, window - 1))),
)
def test_each_token_but_the_first_is_scored_once_and_has_context(count: int, sizes: tuple[int, int]) -> None:
    window, stride = sizes
    parts = list(sliding_windows(count, window, stride))
    scored = [token for part in parts for token in range(part.first, part.end)]
    assert scored == list(range(1, count))
    assert all(part.end - part.start <= window and part.start < part.first for part in parts)
    for part in parts[1:]:
        assert part.first - part.start == window - stride


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (8, 8), (8, 0), (8, 9), (8, -1), (0, 0)])
def test_impossible_windows_are_refused(window: int, stride: int) -> None:
    with pytest.raises(ConfigError, match="window is"):
        list(sliding_windows(20, window, stride))


def _model_with_tokenizer(make: str, path: Path) -> tuple[Path, object]:
    core = byte_level_core()
    vocabulary = core.get_vocab_size(with_added_tokens=True)
    model = {"llama": llama, "qwen3.5": qwen35}[make](vocab_size=vocabulary)
    saved(model, path)
    write_tokenizer(path, core)
    return path, model


@pytest.mark.parametrize("make", ["llama", "qwen3.5"])
@pytest.mark.parametrize(("window", "stride"), [(32, 16), (50, 7), (900, 450)])
def test_perplexity_is_that_of_transformers_logits(
    make: str, window: int, stride: int, seed: int, tmp_path: Path
) -> None:
    path, model = _model_with_tokenizer(make, tmp_path)
    seen: list[tuple[int, int]] = []
    with LLM(path, dtype="float32") as llm:
        ids = llm.tokenizer.encode(WORDS * 3, special=False)
        result = perplexity(
            llm, WORDS * 3, window=window, stride=stride, progress=lambda done, total: seen.append((done, total))
        )
    nats = 0.0
    first = 1
    for start in range(0, len(ids), stride):
        end = min(start + window, len(ids))
        rows = oracle_logits(model, ids[start:end]).double().log_softmax(-1)
        nats -= sum(float(rows[t - start - 1, ids[t]]) for t in range(first, end))
        first = end
        if end == len(ids):
            break
    assert result.tokens == len(ids) - 1
    assert result.nats == pytest.approx(nats / result.tokens, rel=1e-4)
    assert result.perplexity == pytest.approx(math.exp(result.nats))
    assert seen[-1] == (result.tokens, result.tokens)
    assert json.loads(json.dumps(result.to_dict()))["window"] == window


def test_one_window_and_many_that_keep_the_whole_context_agree(tiny_path: Path, text: str) -> None:
    """A stride of 1 keeps window - 1 tokens of context; token by token that is the single window's own context."""
    with LLM(tiny_path, dtype="float32") as llm:
        whole = perplexity(llm, text, window=40, stride=39, max_tokens=40)
        stitched = perplexity(llm, text, window=60, stride=20, max_tokens=40)
    assert whole.tokens == stitched.tokens == 39
    assert stitched.nats == pytest.approx(whole.nats, rel=1e-6)


def test_begin_token_stands_before_every_window(seed: int, tmp_path: Path) -> None:
    core = byte_level_core(special=("<|end|>", "<s>"))
    bos = core.token_to_id("<s>")
    model = llama(vocab_size=core.get_vocab_size(with_added_tokens=True))
    saved(model, tmp_path)
    write_tokenizer(tmp_path, core, {"bos_token": "<s>", "add_bos_token": True})
    with LLM(tmp_path, dtype="float32") as llm:
        assert llm.tokenizer.encode_prompt("") == [bos]
        ids = llm.tokenizer.encode(WORDS * 2, special=False)
        result = perplexity(llm, WORDS * 2, window=30, stride=15, max_tokens=45)
    nats = 0.0
    for start, first, end in ((0, 1, 30), (15, 30, 45)):
        rows = oracle_logits(model, [bos, *ids[start:end]]).double().log_softmax(-1)
        nats -= sum(float(rows[t - start, ids[t]]) for t in range(first, end))
    assert result.nats == pytest.approx(nats / 44, rel=1e-4)


def test_int8_kv_stays_close_on_labkit_tiny(tiny_path: Path, text: str) -> None:
    figures = {}
    for kv in ("auto", "int8"):
        with LLM(tiny_path, dtype="float32", kv_cache_dtype=kv) as llm:
            result = perplexity(llm, text, window=256, stride=128, max_tokens=700)
            assert (result.kv_dtype, result.dtype) == ({"auto": "float32"}.get(kv, kv), "float32")
            figures[kv] = result.perplexity
    print(figures)
    assert figures["int8"] != figures["auto"]  # the pages really are int8
    assert figures["int8"] == pytest.approx(figures["auto"], rel=2e-3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_quantized_kv_stays_close_on_smollm2(
    smollm2_path: Path, text: str, record_property: Callable[[str, object], None]
) -> None:
    """Of the first 2,048 tokens: INT8 within 0.2 %, k8v4 within 1.5 %, INT4 within 7 % of fp16 pages."""
    figures = {}
    for kv in ("fp16", "int8", "k8v4", "int4"):
        with LLM(smollm2_path, dtype="float32", kv_cache_dtype=kv) as llm:
            figures[kv] = perplexity(llm, text, max_tokens=2048).perplexity
        record_property(f"smollm2_perplexity_kv_{kv}", figures[kv])
    losses = {kv: figure / figures["fp16"] - 1 for kv, figure in figures.items()}
    assert abs(losses["int8"]) < 2e-3 and losses["k8v4"] < 0.015 and losses["int4"] < 0.07, losses


def test_comparing_an_engine_with_itself_finds_nothing(tiny_path: Path, text: str) -> None:
    with LLM(tiny_path, dtype="float32") as llm:
        result = compare(llm, llm, text, window=64, stride=32, max_tokens=150)
    assert (result.argmax_agreement, result.mean_kl, result.max_kl) == (1.0, 0.0, 0.0)
    assert result.tokens == 149


def test_comparison_is_that_of_the_logits(tiny_path: Path, text: str) -> None:
    with LLM(tiny_path) as auto, LLM(tiny_path, dtype="float32") as exact:
        result = compare(auto, exact, text, window=100, stride=50, max_tokens=100)
        ids = exact.tokenizer.encode(text, special=False)[:100]
        ours, theirs = auto.logits(ids)[:-1].double(), exact.logits(ids)[:-1].double()
    p, q = theirs.softmax(-1), ours.softmax(-1)
    kl = (p * (p / q).log()).sum(-1)
    print(f"argmax agreement {result.argmax_agreement:.4f}, mean KL {result.mean_kl:.2e}, largest {result.max_kl:.2e}")
    assert result.argmax_agreement == float((ours.argmax(-1) == theirs.argmax(-1)).double().mean())
    assert result.mean_kl == pytest.approx(float(kl.mean()), rel=1e-6) and result.mean_kl > 0
    assert result.max_kl == pytest.approx(float(kl.max()), rel=1e-6)
    assert (result.dtype, result.reference_dtype) == ("bfloat16", "float32")
    assert (result.kv_dtype, result.reference_kv_dtype) == ("bfloat16", "float32")


def test_different_vocabularies_are_not_compared(seed: int, tiny_path: Path, tmp_path: Path) -> None:
    path, _ = _model_with_tokenizer("llama", tmp_path)
    with (
        LLM(path, dtype="float32") as small,
        LLM(tiny_path, dtype="float32") as tiny,
        pytest.raises(ConfigError, match="different tokens"),
    ):
        compare(small, tiny, WORDS, window=8, stride=4)


def test_wrong_settings_name_their_cure(tiny_path: Path, text: str) -> None:
    with LLM(tiny_path, dtype="float32", max_seq_len=64) as llm:
        with pytest.raises(ConfigError, match="Use at most 63"):
            perplexity(llm, text, window=64, stride=32)
        perplexity(llm, text, window=63, stride=32, max_tokens=70)
        for wrong in (0, 1, -3, 2.5, True):
            with pytest.raises(ConfigError, match="max_tokens"):
                perplexity(llm, text, window=32, stride=16, max_tokens=wrong)  # type: ignore[arg-type]
        for short in ("", "a"):
            with pytest.raises(ConfigError, match="at least two tokens"):
                perplexity(llm, short, window=32, stride=16)


def test_model_without_tokenizer_is_refused(seed: int, tmp_path: Path) -> None:
    with LLM(saved(llama(), tmp_path), dtype="float32") as llm, pytest.raises(TokenizerError):
        perplexity(llm, "some text")


def test_text_is_plain_and_says_where_it_comes_from(text: str) -> None:
    folder = files("labkit") / "assets" / "text"
    source = (folder / "SOURCE.md").read_text(encoding="utf-8")
    assert 40_000 < len(text) < 80_000
    assert "lincoln-1862.txt" in source and "public domain" in source
    assert torch.tensor(list(text.encode("ascii"))).max() < 127

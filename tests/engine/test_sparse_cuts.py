"""What a sparse prompt keeps is its own affair: neighbours, budgets and preemption move neither pages nor logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, qwen35, random_ids, saved
from torch import Tensor

from labkit import LLM, SamplingParams
from labkit.engine import config
from labkit.engine.pages import pages_for
from labkit.model import layers
from labkit.model.forward_batch import ForwardBatch
from labkit.ops.attention_prefill import attention_prefill
from labkit.ops.kept_pages import KeptPages
from labkit.ops.layout import QUERY_TILE
from labkit.ops.paged_kv import KVPages
from labkit.ops.sparse_settings import SparseSettings

SPARSE: dict[str, Any] = {
    "executor": "torch", "dtype": "float32", "sparse_prefill": True, "sparse_mass": 0.4, "sparse_recent": 1,
    "sparse_threshold": 200,
}  # fmt: skip
Lists = list[list[int]]  # of each head


@dataclass
class Prefills:
    """Every prefill of one prompt: (layer's pages, position of a tile's first row) -> what each of its heads kept."""

    prompt: list[int]
    kept: dict[tuple[int, int], list[Lists]] = field(default_factory=dict)
    layers: dict[int, int] = field(default_factory=dict)

    def note(self, pages: KVPages, batch: ForwardBatch, lists: KeptPages) -> None:
        tile, layer = 0, self.layers.setdefault(id(pages), len(self.layers))
        for chunk in batch.chunks[batch.num_decodes :]:
            for start in range(chunk.start, chunk.end, QUERY_TILE):
                if self._is_mine(chunk.token_ids, chunk.start):
                    counts = lists.count[tile].tolist()
                    found = [row[:n] for row, n in zip(lists.index[tile].tolist(), counts, strict=True)]
                    self.kept.setdefault((layer, start), []).append(found)
                tile += 1

    def _is_mine(self, tokens: list[int], start: int) -> bool:
        own = self.prompt[start : start + len(tokens)]
        return bool(own) and tokens[: len(own)] == own


@dataclass
class Answer:
    """Of one prompt: its prefills, the logits of all its rows, what it generated, and how often it was preempted."""

    prefills: Prefills
    logits: Tensor
    tokens: list[int]
    preemptions: int


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Answer a prompt beside others, which arrived ``steps`` steps earlier, and note every one of its prefills.

    beside: their prompts' lengths and most tokens; behind: of those that come later; room: pages that there are beside
    those of the prompt.
    """
    watching: list[Prefills] = []
    settings = partial(SparseSettings, needle=1.0)  # so few random pages are all needles to some row
    monkeypatch.setattr(config, "SparseSettings", settings)
    prefill = layers._prefill

    def noting(q: Tensor, pages: KVPages, batch: ForwardBatch, gate: Tensor | None) -> Tensor:
        def attend(q: Tensor, pages: KVPages, paged: Any, *, kept: KeptPages | None, **named: Any) -> Tensor:
            watching[-1].note(pages, batch, kept or KeptPages.all_of(paged, q.shape[1]))
            return attention_prefill(q, pages, paged, kept=kept, **named)

        monkeypatch.setattr(layers, "attention_prefill", attend)
        return prefill(q, pages, batch, gate)

    monkeypatch.setattr(layers, "_prefill", noting)

    def answer(
        model: Path,
        prompt: list[int],
        beside: Sequence[tuple[int, int]] = (),
        steps: int = 0,
        room: int | None = None,
        behind: Sequence[tuple[int, int]] = (),
        **settings: Any,
    ) -> Answer:
        watching.append(Prefills(prompt))
        pages = None if room is None else pages_for(len(prompt) + 1) + room
        with LLM(model, **SPARSE, num_pages=pages, **settings) as llm:
            engine = llm.engine
            for length, tokens in beside:
                engine.submit(random_ids(160, length), greedy(tokens))
            for _ in range(steps):
                engine.step()
            [request] = engine.submit(prompt, greedy(20))
            for length, tokens in behind:
                engine.submit(random_ids(160, length), greedy(tokens))
            rows = engine._logits_of[request.id] = []
            while not request.finished:
                engine.step()
            return Answer(watching[-1], torch.cat(rows), list(request.seq.output_ids), request.seq.num_preemptions)

    return answer


def assert_same(ours: Answer, alone: Answer) -> None:
    """The same tiles, each with the same pages however often it was computed; the same logits; the same tokens."""
    wanted = {place: lists[0] for place, lists in alone.prefills.kept.items()}
    assert set(ours.prefills.kept) == set(wanted), "other tiles"
    for place, lists in ours.prefills.kept.items():
        assert all(found == wanted[place] for found in lists), f"tile {place} kept other pages"
    torch.testing.assert_close(ours.logits, alone.logits, rtol=1e-3, atol=1e-3)
    assert ours.tokens == alone.tokens


def checked(alone: Answer, prompt: list[int]) -> Answer:
    """That the reference is what it should be: every tile seen once, and pages left out."""
    places = alone.prefills.kept
    assert {start for _, start in places} == set(range(0, len(prompt), QUERY_TILE))
    assert all(len(lists) == 1 for lists in places.values())
    assert any(len(kept) <= start // QUERY_TILE for (_, start), [lists] in places.items() for kept in lists)
    return alone


BESIDE: dict[str, dict[str, Any]] = {
    "budgets of a tile": {"prefill_tokens": 64, "mixed_prefill_tokens": 64},
    "budgets of no whole tiles": {"prefill_tokens": 101, "mixed_prefill_tokens": 65},
    "all but the last tile at once": {"prefill_tokens": 448},
    "beside a decoding one": {"beside": [(30, 60)], "steps": 3, "mixed_prefill_tokens": 150},
    "beside a long one": {"beside": [(333, 5)], "prefill_tokens": 400, "mixed_prefill_tokens": 90},
    "beside several": {"beside": [(5, 50), (300, 40), (70, 9)], "steps": 1, "mixed_prefill_tokens": 100},
    "preempted in its prefill": {"beside": [(58, 60), (60, 60)], "steps": 2, "mixed_prefill_tokens": 64, "room": 2},
    "preempted in its answer": {"beside": [(250, 150)], "steps": 2, "room": 4},
    "preempted, its answer recomputed beside a sparse one": {
        "beside": [(250, 150)], "steps": 2, "room": 4, "behind": [(230, 9)],
    },
}  # fmt: skip


@pytest.mark.parametrize("length", [449, 512, 500])  # a last tile of one row, of 64, of some
def test_a_prompt_keeps_what_it_keeps_alone(length: int, tmp_path: Path, seed: int, ask: Callable[..., Answer]) -> None:
    model, prompt = saved(llama(), tmp_path), random_ids(160, length)
    alone = checked(ask(model, prompt), prompt)
    for situation, settings in BESIDE.items():
        print(situation)  # pytest shows the last one with a failure
        ours = ask(model, prompt, **settings)
        assert bool(ours.preemptions) == situation.startswith("preempted")
        assert_same(ours, alone)


def test_a_last_row_alone_goes_through_gated_delta_net_too(
    tmp_path: Path, seed: int, ask: Callable[..., Answer]
) -> None:
    model, prompt = saved(qwen35(), tmp_path), random_ids(160, 449)
    alone = checked(ask(model, prompt), prompt)
    assert_same(ask(model, prompt, prefill_tokens=64), alone)
    assert_same(ask(model, prompt, beside=[(30, 60)], steps=1, mixed_prefill_tokens=70), alone)


def test_output_attends_to_everything_even_where_the_prompt_was_too_short_to_be_sparse(
    tmp_path: Path, seed: int, ask: Callable[..., Answer]
) -> None:
    """190 tokens, then 20 more: its recomputation crosses the threshold of 200 and must leave nothing out."""
    model, prompt = saved(llama(), tmp_path), random_ids(160, 190)
    alone, ours = ask(model, prompt), ask(model, prompt, beside=[(250, 130)], steps=2, room=4)
    assert ours.preemptions
    torch.testing.assert_close(ours.logits, alone.logits, rtol=1e-3, atol=1e-3)
    assert ours.tokens == alone.tokens
    seen = [
        (start // 64 + 1, kept) for (_, start), every in ours.prefills.kept.items() for lists in every for kept in lists
    ]
    assert all(kept == list(range(pages)) for pages, kept in seen)

"""Chapter 00: what is noted of a step, the pictures made of it, and the check of the greedy loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.models import random_ids

from labkit import LLM, SamplingParams
from labkit.engine.request import Request
from labkit.lab.exercises.start import check_greedy
from labkit.lab.picture import SvgPicture
from labkit.lab.step_watch import StepRecord, watch
from labkit.lab.token_flow import flow_stages, token_flow
from labkit.lab.top_tokens import TokenShare, top_tokens, top_tokens_picture, visible

SVG = "{http://www.w3.org/2000/svg}"
EXACT = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[LLM]:
    with LLM(tiny_path, dtype="float32", num_pages=16, prefill_tokens=40, mixed_prefill_tokens=40) as llm:
        yield llm


def run(llm: LLM, *prompts: list[int]) -> tuple[list[Request], list[StepRecord]]:
    with watch(llm.engine) as steps:
        requests = [llm.engine.submit(ids, EXACT)[0] for ids in prompts]
        while llm.engine.has_work:
            llm.engine.step()
    return requests, steps


def texts(picture: SvgPicture) -> list[str]:
    svg = picture._repr_mimebundle_()[0]["image/svg+xml"]
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


# What is noted


def test_every_step_is_noted_and_nothing_changes(tiny: LLM, seed: int) -> None:
    ids = random_ids(8000, 100)
    runner = tiny.engine.runner
    [request], steps = run(tiny, ids)
    assert [step.rows for step in steps] == [40, 40, 20, 1, 1, 1, 1, 1]
    assert [step.chunk(request).start for step in steps] == [0, 40, 80, 100, 101, 102, 103, 104]
    assert all(step.pages_used == len(step.page_tables[0]) == 2 and step.slots_used == 1 for step in steps)
    assert all(step.seconds > 0 for step in steps)
    assert tiny.engine.runner is runner
    assert request.seq.output_ids == tiny.generate(ids, EXACT)[0].token_ids
    assert request.seq.pages == [] and len(steps[-1].page_tables[0]) == 2  # kept, though the sequence gave them back


def test_a_watched_engine_keeps_its_settings(tiny_path: Path, seed: int) -> None:
    ids = random_ids(8000, 200)
    sparse = {"sparse_prefill": True, "sparse_threshold": 64, "sparse_mass": 0.3, "sparse_recent": 0}
    with LLM(tiny_path, dtype="float32", kv_cache_dtype="int4", **sparse) as llm:
        [request], _ = run(llm, ids)
        assert request.seq.output_ids == llm.generate(ids, EXACT)[0].token_ids


def test_the_runner_comes_back_after_a_failure(tiny: LLM) -> None:
    runner = tiny.engine.runner
    with pytest.raises(RuntimeError, match="in between"), watch(tiny.engine):
        raise RuntimeError("in between")
    assert tiny.engine.runner is runner


# One token's way


def test_the_flow_shows_the_figures_of_its_step(tiny: LLM, seed: int) -> None:
    ids = tiny.tokenizer.encode_prompt("The capital of France is")
    [request], steps = run(tiny, ids)
    for number, step in enumerate(steps):
        stages = flow_stages(tiny.engine, request, step)
        new = request.seq.output_ids[number]
        share = step.result.logits[0].double().softmax(-1)[new].item()
        assert stages[1].figures.endswith(
            ": " + ", ".join(map(str, ids if number == 0 else [request.seq.output_ids[number - 1]]))
        )
        assert stages[2].figures.startswith(
            f"{len(ids)} prompt + {number} new tokens, {len(ids) + number - 1 if number else 0} "
        )
        assert (
            stages[4].figures.startswith(f"{step.rows} row")
            and f"KV pages {list(step.page_tables[0])}" in stages[4].figures
        )
        assert stages[6].figures == f"id {new}, probability {share:.0%}"
        assert stages[7].figures == visible(tiny.tokenizer.decode([new], skip_special=False))
        assert (stages[1].work == "Tokenizer.encode") == (number == 0)


def test_the_flow_finds_its_request_among_others(tiny: LLM, seed: int) -> None:
    (a, b), steps = run(tiny, random_ids(8000, 30), random_ids(8000, 25))
    with pytest.raises(ValueError, match="prefill went on"):  # b gets 10 of the 40 rows in the first step
        token_flow(tiny.engine, b, steps[0])
    with pytest.raises(ValueError, match="no part"):
        token_flow(tiny.engine, a, steps[-1])
    second = {request: flow_stages(tiny.engine, request, steps[1]) for request in (a, b)}
    assert second[a][6].figures.startswith(f"id {a.seq.output_ids[1]},")
    assert second[b][6].figures.startswith(f"id {b.seq.output_ids[0]},")
    assert "2 chunks, 16 rows; ours [10:25]" in second[b][3].figures
    assert second[a][4].figures != second[b][4].figures


def test_the_end_token_has_no_text(tiny: LLM) -> None:
    [request] = tiny.engine.submit(
        tiny.chat_ids([{"role": "user", "content": "What is the capital of France?"}]),
        SamplingParams(temperature=0, max_tokens=40),
    )
    with watch(tiny.engine) as steps:
        while not request.finished:
            tiny.engine.step()
    assert request.seq.finish_reason == "stop"
    assert "ends the answer" in flow_stages(tiny.engine, request, steps[-1])[-1].figures


def test_the_words_of_the_picture_fit_their_boxes(tiny: LLM, seed: int) -> None:
    [request], steps = run(tiny, random_ids(8000, 39))
    picture = token_flow(tiny.engine, request, steps[0])
    stages = flow_stages(tiny.engine, request, steps[0])
    for stage in stages:
        assert stage.figures in texts(picture) and stage.figures in picture.text and stage.figures in picture.alt
        assert len(stage.figures) <= 58
    assert 'role="img" aria-label="One token' in picture._repr_mimebundle_()[0]["image/svg+xml"]


# The most likely tokens


def test_top_tokens_are_the_softmax_without_the_padding_of_the_head(tiny: LLM, seed: int) -> None:
    size = tiny.tokenizer.vocab_size
    logits = np.random.default_rng(seed).normal(0, 3, size + 64)
    logits[size:] = 99.0
    logits[[3, 7]] = 12.5
    exact = np.exp(logits[:size]) / np.exp(logits[:size]).sum()
    shares = top_tokens(tiny.tokenizer, logits, count=6)
    assert [share.probability for share in shares] == pytest.approx(sorted(exact, reverse=True)[:6])
    assert all(share.probability == pytest.approx(exact[share.token]) for share in shares)
    places = [share.token for share in shares]
    assert places.index(3) + 1 == places.index(7)  # equals stand in id order


def test_bars_are_as_long_as_their_probability_and_escape_their_label() -> None:
    shares = [TokenShare(1, "<b>&", 0.5), TokenShare(2, "·x↵", 0.25), TokenShare(3, "a" * 40, 0.01)]
    picture = top_tokens_picture(shares)
    root = ElementTree.fromstring(picture._repr_mimebundle_()[0]["image/svg+xml"])
    widths = [float(bar.attrib["width"]) for bar in list(root.iter(f"{SVG}rect"))[1:]]  # behind the background
    assert widths[0] == 2 * widths[1] and widths[2] == pytest.approx(0.02 * widths[0], abs=0.5)
    assert "<b>&" in texts(picture) and "50.0%" in texts(picture)
    assert max(map(len, texts(picture))) == 16
    assert "<b>& 50.0%" in picture.alt and picture.text.count("\n") == 2


# The exercise


def loop(llm: LLM, ids: list[int], count: int, row: int = -1, keep: bool = True) -> list[int]:
    new: list[int] = []
    for _ in range(count):
        new.append(int(llm.logits(ids + (new if keep else []))[row].argmax()))
    return new


def in_place(llm: LLM, ids: list[int], count: int) -> list[int]:
    start = len(ids)
    for _ in range(count):
        ids.append(int(llm.logits(ids)[-1].argmax()))
    return ids[start:]


WRONG: list[tuple[Callable[..., Any], str]] = [
    (lambda llm, ids, count: [], "asked for 1 tokens and returned 0"),
    (lambda llm, ids, count: ids + loop(llm, ids, count), "without the prompt"),
    (lambda llm, ids, count: loop(llm, ids, count, row=0), r"\[-1\]"),
    (lambda llm, ids, count: loop(llm, ids, count, keep=False), "Append each new token"),
    (lambda llm, ids, count: [llm.logits(ids)[-1].argmax()] * count, "int"),
    (lambda llm, ids, count: None, "Return a list"),
    (lambda llm, ids, count: [10**6] * count, "beyond the vocabulary"),
    (in_place, "copy"),
]


@pytest.mark.parametrize("number", range(2))
def test_the_solution_passes(tiny: LLM, number: int) -> None:
    assert check_greedy(loop, tiny, random.Random().randrange(2**31)).startswith("Right")


@pytest.mark.parametrize(("wrong", "hint"), WRONG)
def test_wrong_loops_get_a_hint(tiny: LLM, wrong: Callable[..., Any], hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_greedy(wrong, tiny, seed=1)

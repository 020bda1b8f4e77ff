"""The engine through its Python face: answers, limits, failures and interruptions."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, oracle_logits, qwen35, random_ids, saved

from labkit import LLM, SamplingParams
from labkit.errors import (
    ConfigError,
    EmptyPromptError,
    EngineClosedError,
    ExecutorError,
    PromptTooLongError,
    RequestError,
    TokenizerError,
)

GREEDY = SamplingParams(temperature=0, max_tokens=24)
TEXTS = ["The capital of France is", "In the beginning", "def main():\n", "A"]


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[LLM]:
    with LLM(tiny_path, dtype="float32", max_seq_len=512) as llm:
        yield llm


def all_pages_free(llm: LLM) -> bool:
    scheduler = llm.engine.scheduler
    scheduler.check_invariants()
    return scheduler.pages.num_free == llm.engine.num_pages and not llm.engine.has_work


# Answers


def test_stream_joins_to_what_generate_returns(tiny: LLM) -> None:
    for text in TEXTS:
        [whole] = tiny.generate(text, GREEDY)
        stream = tiny.stream(text, GREEDY)
        pieces = []
        while True:
            try:
                pieces.append(next(stream))
            except StopIteration as end:
                output = end.value
                break
        assert "".join(pieces) == whole.text == output.text
        assert output.token_ids == whole.token_ids
        assert whole.text == tiny.tokenizer.decode([t for t in whole.token_ids if t not in tiny.tokenizer.eos_ids])
    assert all_pages_free(tiny)


def test_many_prompts_give_what_each_gives_alone_in_order(tiny: LLM) -> None:
    prompts = TEXTS * 4  # twice the batch size: half of them wait
    outputs = tiny.generate(prompts, GREEDY)
    assert [o.prompt for o in outputs] == prompts
    for output in outputs[:4]:
        assert output.token_ids == tiny.generate(output.prompt, GREEDY)[0].token_ids


@pytest.mark.parametrize("family", [llama, qwen35])
def test_preemption_in_a_tiny_pool_changes_no_token(family: Any, seed: int, tmp_path: Path) -> None:
    path = saved(family(), tmp_path)
    prompts = [random_ids(160, n) for n in (60, 40, 100, 10, 130)]
    params = SamplingParams(temperature=0, max_tokens=100)
    with LLM(path, dtype="float32") as roomy, LLM(path, dtype="float32", num_pages=5, prefill_tokens=50) as tight:
        expected = [roomy.generate([p], params)[0] for p in prompts]
        outputs = tight.generate(prompts, params)
        assert sum(o.completions[0].metrics.preemptions for o in outputs) > 0
        assert all_pages_free(tight)
        for ours, alone in zip(outputs, expected, strict=True):
            same_or_tied(roomy, ours.prompt_ids, ours.token_ids, alone.token_ids)


def same_or_tied(llm: LLM, prompt: list[int], ours: list[int], theirs: list[int]) -> None:
    """Equal, or first different where the two best logits all but tie (sums in another order may swap them)."""
    first = next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), None)
    if first is not None:
        best = llm.logits(prompt + theirs[:first])[-1].topk(2).values
        assert best[0] - best[1] < 1e-3, f"token {first} differs without a tie"


def test_int8_pages_stay_close_to_the_model_dtype(tiny_path: Path, tiny: LLM, seed: int) -> None:
    ids = random_ids(8000, 150)
    with LLM(tiny_path, dtype="float32", kv_cache_dtype="int8", prefill_tokens=40) as quantized:
        ours, exact = quantized.logits(ids), tiny.logits(ids)
    change = ((ours - exact).norm() / exact.norm()).item()
    assert 0 < change < 0.02


def test_chat_uses_the_template(tiny: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of Norway?"}]
    output = tiny.chat(messages, GREEDY)
    assert tiny.tokenizer.decode(output.prompt_ids, skip_special=False).startswith("<|im_start|>user\nWhat is")
    assert "".join(tiny.stream_chat(messages, GREEDY)) == output.text


def test_n_answers_share_a_seed_and_differ(tiny: LLM) -> None:
    params = SamplingParams(temperature=1.5, n=3, seed=5, max_tokens=12)
    first, again = (tiny.generate(TEXTS[1], params)[0] for _ in range(2))
    assert [c.index for c in first.completions] == [0, 1, 2]
    assert [c.token_ids for c in first.completions] == [c.token_ids for c in again.completions]
    assert len({tuple(c.token_ids) for c in first.completions}) == 3


def test_seeded_answers_ignore_their_neighbours(tiny: LLM) -> None:
    seeded, other = (SamplingParams(temperature=0.9, seed=s, max_tokens=12) for s in (7, None))
    [alone] = tiny.generate(TEXTS[0], seeded)
    for order in ([seeded, other, other], [other, other, seeded]):
        outputs = tiny.generate([TEXTS[0] if p is seeded else TEXTS[1] for p in order], order)
        assert outputs[order.index(seeded)].token_ids == alone.token_ids


def test_stop_strings_tokens_and_limits(tiny: LLM) -> None:
    [free] = tiny.generate(TEXTS[1], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    assert free.finish_reason == "length" and len(free.token_ids) == 30
    stop = free.text[8:11]
    [stopped] = tiny.generate(TEXTS[1], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=(stop,)))
    assert stopped.text == free.text[: free.text.index(stop)]
    assert (stopped.finish_reason, stopped.completions[0].stop_reason) == ("stop", stop)
    token = free.token_ids[6]
    first = free.token_ids.index(token)
    [ended] = tiny.generate(TEXTS[1], SamplingParams(temperature=0, ignore_eos=True, stop_token_ids=(token,)))
    assert ended.token_ids == free.token_ids[: first + 1]
    assert (ended.finish_reason, ended.completions[0].stop_reason) == ("stop", token)
    [late] = tiny.generate(
        TEXTS[1], SamplingParams(temperature=0, min_tokens=12, max_tokens=30, ignore_eos=True, stop_token_ids=(token,))
    )
    assert token not in late.token_ids[:12] and len(late.token_ids) > 12


def test_ignore_eos_goes_on_where_the_model_would_end(tiny: LLM) -> None:
    bias = {tiny.tokenizer.eos_ids[0]: 100.0}
    ends, goes_on = (
        SamplingParams(temperature=0, max_tokens=5, logit_bias=bias, ignore_eos=ignore) for ignore in (False, True)
    )
    [ended], [went_on] = tiny.generate(TEXTS[0], ends), tiny.generate(TEXTS[0], goes_on)
    assert (len(ended.token_ids), ended.finish_reason, ended.text) == (1, "stop", "")
    assert (len(went_on.token_ids), went_on.finish_reason) == (5, "length")


def test_logits_survive_preemption(seed: int, tmp_path: Path) -> None:
    model = qwen35()
    prompts = [random_ids(160, n) for n in (120, 100, 90)]
    with LLM(saved(model, tmp_path), dtype="float32", num_pages=4, prefill_tokens=40) as llm:
        growing = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
        [request] = llm.engine.submit(random_ids(160, 60), growing)  # takes page after page from the others
        for ids, rows in zip(prompts, llm.engine.logits(prompts), strict=True):
            assert (rows - oracle_logits(model, ids)).abs().max() < 2e-3
        llm.engine.abort(request)


def test_logprobs_are_the_models(tiny: LLM) -> None:
    [output] = tiny.generate(TEXTS[0], SamplingParams(temperature=0, max_tokens=5, logprobs=3, ignore_eos=True))
    rows = tiny.logits(output.prompt_ids + output.token_ids)[len(output.prompt_ids) - 1 : -1].log_softmax(-1)
    entries = output.completions[0].logprobs
    assert entries is not None and len(entries) == 5
    for entry, row, token in zip(entries, rows, output.token_ids, strict=True):
        assert entry.token == token and entry.logprob == pytest.approx(row[token].item(), abs=1e-3)
        assert [t for t, _ in entry.top] == row.topk(3).indices.tolist()


def test_rows_of_the_head_beyond_the_tokenizer_are_never_sampled(tiny_path: Path, seed: int, tmp_path: Path) -> None:
    """As Qwen3.5, whose head has 248,320 rows for 248,077 ids; here the surplus rows would win every time."""
    model = llama(vocab_size=8300)
    model.lm_head.weight[8192:] *= 50
    saved(model, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_path / name, tmp_path)
    with LLM(tmp_path, dtype="float32") as llm:
        known = llm.tokenizer.vocab_size
        assert llm.logits([1, 2, 3]).shape == (3, 8300)
        for params in (GREEDY, SamplingParams(temperature=2.0, max_tokens=40, ignore_eos=True)):
            assert max(llm.generate([[5, 6]], params)[0].token_ids) < known


# Requests that cannot be served


def test_an_impossible_prompt_among_others(tiny: LLM) -> None:
    prompts: list[Any] = [TEXTS[0], [1] * 600, TEXTS[1], [], [999_999], TEXTS[2]]
    outputs = tiny.generate(prompts, GREEDY)
    kinds = [type(o.error) if o.error else None for o in outputs]
    assert kinds == [None, PromptTooLongError, None, EmptyPromptError, RequestError, None]
    for index in (0, 2, 5):
        assert outputs[index].token_ids == tiny.generate(prompts[index], GREEDY)[0].token_ids
    assert all_pages_free(tiny)


def test_a_single_impossible_prompt_raises(tiny: LLM) -> None:
    with pytest.raises(PromptTooLongError, match=r"600 tokens.*max_seq_len"):
        tiny.generate([1] * 600, GREEDY)
    with pytest.raises(EmptyPromptError):
        tiny.generate("", GREEDY)
    with pytest.raises(ConfigError, match="logit_bias"):
        tiny.generate("a", SamplingParams(logit_bias={999_999: 1.0}))


@pytest.mark.parametrize("prompts", [None, 5, [1.5], [None], ["a", None], [["x"]]])
def test_prompts_of_a_wrong_type(tiny: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError):
        for output in tiny.generate(prompts, GREEDY):
            if output.error:
                raise output.error


def test_wrong_arguments_of_calls(tiny: LLM) -> None:
    for params in ({"temperature": 0}, "x", [None]):
        with pytest.raises(ConfigError, match="SamplingParams"):
            tiny.generate(["a"], params)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="temperature"):
        tiny.chat([{"role": "user", "content": "hi"}], temperature=0)
    with pytest.raises(ConfigError, match="2 sampling params for 1 prompts"):
        tiny.generate(["a"], [GREEDY, GREEDY])
    with pytest.raises(ConfigError, match="stream"):
        next(tiny.stream("a", SamplingParams(n=2)))
    with pytest.raises(RequestError, match="messages"):
        tiny.chat([])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"dtype": "float8"}, ConfigError),
        ({"kv_cache_dtype": "int3"}, ConfigError),
        ({"executor": "gpu"}, ConfigError),
        ({"executor": "cuda"}, ExecutorError),
        ({"decode_batch_size": 0}, ConfigError),
        ({"num_pages": "many"}, ConfigError),
        ({"max_seq_len": 10**9}, ConfigError),
        ({"tp_size": 2}, ConfigError),
        ({"tp_size": True}, ConfigError),
        ({"num_pages": 10**13}, ConfigError),
        ({"colour": "red"}, ConfigError),
    ],
)
def test_wrong_settings(settings: dict[str, Any], error: type[Exception], tiny_path: Path) -> None:
    with pytest.raises(error, match=next(iter(settings)).split("_")[-1] if error is ConfigError else "executor"):
        LLM(tiny_path, **settings)


def test_a_closed_engine_says_so(tiny_path: Path) -> None:
    llm = LLM(tiny_path)
    llm.close()
    llm.close()
    with pytest.raises(EngineClosedError):
        llm.generate("a")


def test_without_a_tokenizer_token_ids_still_work(seed: int, tmp_path: Path) -> None:
    model = llama()
    with LLM(saved(model, tmp_path), dtype="float32") as llm:
        ids = random_ids(160, 30)
        assert (llm.logits(ids) - oracle_logits(model, ids)).abs().max() < 1e-3
        [output] = llm.generate([ids], SamplingParams(temperature=0, max_tokens=4))
        assert len(output.token_ids) == 4 and output.text == ""
        with pytest.raises(TokenizerError, match="tokenizer"):
            llm.generate("text")
        with pytest.raises(TokenizerError, match="Stop strings"):
            llm.generate([1, 2], SamplingParams(stop=("x",)))


def test_a_model_that_gives_nan_fails_only_its_request(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny.engine.runner.run
    poisoned = tiny.tokenizer.encode(TEXTS[0])[0]

    def broken(batch: Any, every_row_of: Any = ()) -> Any:
        result = run(batch, every_row_of)
        for row, chunk in enumerate(result.sampled):
            if chunk.seq.prompt_ids[0] == poisoned and len(chunk.seq.output_ids) == 2:
                result.logits[row] = float("nan")
        return result

    monkeypatch.setattr(tiny.engine.runner, "run", torch.inference_mode()(broken))
    good, bad = tiny.generate([TEXTS[1], TEXTS[0]], GREEDY)
    assert bad.finish_reason == "error" and len(bad.token_ids) == 2 and "non-finite" in str(bad.error)
    monkeypatch.undo()
    assert good.token_ids == tiny.generate(TEXTS[1], GREEDY)[0].token_ids
    assert all_pages_free(tiny)


# Notebooks


def test_works_inside_a_running_event_loop(tiny: LLM) -> None:
    async def cell() -> str:
        return tiny.generate(TEXTS[0], GREEDY)[0].text + "".join(tiny.stream(TEXTS[1], GREEDY))

    assert asyncio.run(cell())


@pytest.mark.parametrize("moment", [1, 2, 5])
def test_an_interrupted_cell_leaves_the_engine_usable(tiny: LLM, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [o.token_ids for o in tiny.generate(TEXTS, GREEDY)]
    run, calls = tiny.engine.runner.run, iter(range(1, 1000))

    def interrupted(batch: Any, every_row_of: Any = ()) -> Any:
        result = run(batch, every_row_of)
        if next(calls) == moment:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(tiny.engine.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny.generate(TEXTS, GREEDY)
    monkeypatch.undo()
    assert all_pages_free(tiny)
    assert [o.token_ids for o in tiny.generate(TEXTS, GREEDY)] == expected


def test_an_interrupt_during_bookkeeping_waits_for_its_end(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    postprocess = tiny.engine.scheduler.postprocess

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        postprocess(*arguments)

    monkeypatch.setattr(tiny.engine.scheduler, "postprocess", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny.generate(TEXTS, GREEDY)
    monkeypatch.undo()
    assert all_pages_free(tiny)


def test_streams_read_in_turn_lose_nothing(tiny: LLM) -> None:
    """Whoever steps the engine advances every request; each stream must still yield all of its own text."""
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    expected = [tiny.generate(text, params)[0].text for text in TEXTS]
    streams = [tiny.stream(text, params) for text in TEXTS]
    got = [""] * len(TEXTS)
    for pieces in zip_longest(*streams, fillvalue=""):
        got = [text + piece for text, piece in zip(got, pieces, strict=True)]
    assert got == expected
    stream = tiny.stream(TEXTS[0], params)
    first = next(stream)
    tiny.logits([1, 2, 3])
    second = next(stream)
    assert tiny.generate(TEXTS[1], params)[0].text == expected[1]
    assert first + second + "".join(stream) == expected[0]
    assert all_pages_free(tiny)


def test_threads_share_an_engine(tiny: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    expected = {text: tiny.generate(text, params)[0].text for text in TEXTS}
    got: list[tuple[str, str]] = []

    def answer(text: str) -> None:
        for _ in range(3):
            got.append((text, tiny.generate(text, params)[0].text))
            got.append((text, "".join(tiny.stream(text, params))))
            assert tiny.logits([5, 6, 7]).shape[0] == 3

    with ThreadPoolExecutor(len(TEXTS)) as pool:
        for done in [pool.submit(answer, text) for text in TEXTS]:
            done.result()
    assert len(got) == 24 and all(expected[text] == answer for text, answer in got)
    assert all_pages_free(tiny)


def test_leaving_a_stream_early_frees_its_request(tiny: LLM) -> None:
    for _ in tiny.stream(TEXTS[1], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)):
        break
    assert all_pages_free(tiny)


def test_a_failing_step_is_recomputed_by_the_others(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream lives across a step of another call that fails: its state is rebuilt, its text unchanged."""
    [expected] = tiny.generate(TEXTS[1], GREEDY)
    stream = tiny.stream(TEXTS[1], GREEDY)
    pieces = [next(stream)]
    run = tiny.engine.runner.run
    monkeypatch.setattr(tiny.engine.runner, "run", lambda *_: (run(*_), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        tiny.generate(TEXTS[2], GREEDY)
    monkeypatch.undo()
    assert "".join([*pieces, *stream]) == expected.text
    assert all_pages_free(tiny)


def test_metrics_are_in_order(tiny: LLM) -> None:
    [output] = tiny.generate(TEXTS[0], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    metrics = output.completions[0].metrics
    times = [metrics.arrival, metrics.first_scheduled, *metrics.token_times, metrics.finished]
    assert times == sorted(times) and len(metrics.token_times) == 6  # type: ignore[type-var]
    assert metrics.ttft == pytest.approx(metrics.token_times[0] - metrics.arrival)
    assert metrics.tpot == pytest.approx((metrics.token_times[-1] - metrics.token_times[0]) / 5)


def test_the_report_of_a_checkpoint_is_kept(tiny_path: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_path, tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    config["vocab_size"] = 9000
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match=r"embed_tokens.weight has shape \[8192, 256\].*9000"):
        LLM(tmp_path / "copy")

"""Many callers on an event loop: same tokens as alone, aborts at once, failures that stay where they belong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.gate import Gate
from helpers.models import llama, random_ids, saved

from labkit.engine.answer_stream import AnswerStream
from labkit.engine.async_engine import AsyncEngine
from labkit.engine.config import EngineConfig
from labkit.engine.core import Engine
from labkit.engine.sampling_params import SamplingParams
from labkit.errors import (
    ConfigError,
    EmptyPromptError,
    EngineClosedError,
    LabkitError,
    PromptTooLongError,
    RequestError,
    StepFailedError,
)

TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=800, ignore_eos=True)


@pytest.fixture
def engine(tmp_path: Path, seed: int) -> Engine:
    """A random model that runs two sequences at a time, prompts in chunks of 16."""
    checkpoint = saved(llama(), tmp_path)
    return Engine(EngineConfig(checkpoint, dtype="float32", decode_batch_size=2, num_pages=40, prefill_tokens=16))


def alone(engine: Engine, prompt: list[int], params: SamplingParams = GREEDY) -> list[list[int]]:
    """What the synchronous engine gives when nothing runs beside it, for each choice."""
    made = engine.submit(prompt, params)
    while not all(request.finished for request in made):
        engine.step()
    return [request.seq.output_ids for request in made]


def run(engine: Engine, scenario: Callable[[AsyncEngine], Awaitable[Any]]) -> Any:
    """Run a scenario; whatever it did, everything must have been given back at its end."""

    async def main() -> Any:
        async with AsyncEngine(engine) as served:
            return await asyncio.wait_for(scenario(served), timeout=120)

    result = asyncio.run(main())
    engine.scheduler.check_invariants()
    assert engine.scheduler.pages.num_free == engine.num_pages
    assert not engine.requests and not engine.scheduler.has_work
    return result


async def tokens(served: AsyncEngine, prompt: list[int], params: SamplingParams = GREEDY) -> list[list[int]]:
    """All choices' tokens, as the updates brought them."""
    got: list[list[int]] = [[] for _ in range(params.n)]
    async for update in await served.submit(prompt, params):
        assert update.token is not None
        got[update.request.sampling.choice].append(update.token.token)
    return got


def prompts(count: int) -> list[list[int]]:
    return [random_ids(160, int(length)) for length in torch.randint(1, 70, (count,))]


async def in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


# Answers


def test_many_callers_get_what_each_gets_alone(engine: Engine) -> None:
    asked = prompts(6)
    expected = [alone(engine, prompt) for prompt in asked]

    async def scenario(served: AsyncEngine) -> list[Any]:
        return await asyncio.gather(*(tokens(served, prompt) for prompt in asked))

    assert run(engine, scenario) == expected


def test_choices_come_through_one_stream(engine: Engine) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=TOKENS, ignore_eos=True)
    [prompt] = prompts(1)
    expected = alone(engine, prompt, params)
    assert run(engine, lambda served: tokens(served, prompt, params)) == expected


def test_completions_are_those_of_the_updates(engine: Engine) -> None:
    [prompt] = prompts(1)

    async def scenario(served: AsyncEngine) -> Any:
        stream = await served.submit(prompt, GREEDY)
        return await stream.completions(), [update async for update in stream]

    [completion], rest = run(engine, scenario)
    assert [completion.token_ids] == alone(engine, prompt)
    assert completion.finish_reason == "length" and rest == []


def test_callers_on_two_event_loops(engine: Engine) -> None:
    asked = prompts(4)
    expected = [alone(engine, prompt) for prompt in asked]

    async def scenario(served: AsyncEngine) -> Any:
        elsewhere = [in_thread(lambda p=p: asyncio.run(tokens(served, p))) for p in asked[:2]]
        return await asyncio.gather(*elsewhere, *(tokens(served, p) for p in asked[2:]))

    assert run(engine, scenario) == expected


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([], GREEDY, EmptyPromptError),
        ([1] * 1024, GREEDY, PromptTooLongError),
        ([160], GREEDY, RequestError),
        ([1], SamplingParams(logit_bias={160: 1}), ConfigError),
        ([None], GREEDY, RequestError),
        ([1], None, StepFailedError),  # a caller's bug must not end the thread either
    ],
)
def test_a_refusal_reaches_its_caller_and_nobody_else(
    engine: Engine, prompt: Any, params: Any, error: type[LabkitError]
) -> None:
    [good] = prompts(1)
    expected = alone(engine, good)

    async def scenario(served: AsyncEngine) -> Any:
        other = asyncio.create_task(tokens(served, good))
        with pytest.raises(error):
            await served.submit(prompt, params)
        return await other

    assert run(engine, scenario) == expected


def test_an_idle_engine_takes_no_step(engine: Engine) -> None:
    steps: list[float] = []
    step = engine.step
    engine.step = lambda: (steps.append(time.perf_counter()), step())[1]  # type: ignore[method-assign]

    async def scenario(served: AsyncEngine) -> None:
        for _ in range(2):  # idle before the first request, and again after it
            before = len(steps)
            spent = time.process_time()
            await asyncio.sleep(0.3)
            assert len(steps) == before
            assert time.process_time() - spent < 0.2
            await tokens(served, [1, 2, 3])

    run(engine, scenario)


# Aborts


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_an_abort_takes_effect_with_the_step_under_way(engine: Engine, steps: int, how: str) -> None:
    """A is stopped in prefill chunks or in decode, always between schedule() and the results; C takes its place."""
    a, b, c = random_ids(160, 40), random_ids(160, 30), random_ids(160, 20)
    expected = alone(engine, b) + alone(engine, c)
    gate = Gate(engine)

    async def scenario(served: AsyncEngine) -> Any:
        stream = await served.submit(a, ENDLESS)
        others = [asyncio.create_task(tokens(served, prompt)) for prompt in (b, c)]
        reader = asyncio.create_task(stream.completions())
        for _ in range(steps):
            await in_thread(gate.next_batch)
            gate.let_pass()
        assert stream.requests[0].id in await in_thread(gate.next_batch)
        await stop(stream, reader, how)
        gate.let_pass()
        assert stream.requests[0].id not in await in_thread(gate.next_batch)
        assert stream.requests[0].seq.slot is None and not stream.requests[0].seq.pages
        gate.let_pass(1000)
        return [got for [got] in await asyncio.gather(*others)]

    assert run(engine, scenario) == expected


async def stop(stream: AnswerStream, reader: asyncio.Task[Any], how: str) -> None:
    if how == "cancel":
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
    stream.abort()
    stream.abort()  # the second does nothing
    if how == "abort":
        await reader  # whoever waits is told the end


def test_abort_of_a_waiting_request(engine: Engine) -> None:
    gate = Gate(engine)

    async def scenario(served: AsyncEngine) -> Any:
        first = await served.submit([0, 1, 2], ENDLESS)
        later = [asyncio.create_task(served.submit([i], ENDLESS)) for i in (1, 2)]
        await in_thread(gate.next_batch)
        await asyncio.sleep(0.05)
        gate.let_pass()
        second, waiting = await asyncio.gather(*later)
        assert waiting.requests[0].id not in await in_thread(gate.next_batch)
        waiting.abort()
        first.abort()  # there would be room for it now
        gate.let_pass()
        for _ in range(3):
            assert await in_thread(gate.next_batch) == [second.requests[0].id]
            gate.let_pass()
        second.abort()
        gate.let_pass(1000)
        return await tokens(served, [4, 5])

    assert len(run(engine, scenario)[0]) == TOKENS


def test_abort_behind_the_last_token_does_nothing(engine: Engine) -> None:
    async def scenario(served: AsyncEngine) -> Any:
        stream = await served.submit([3, 4], GREEDY)
        completions = await stream.completions()
        stream.abort()
        return completions

    [completion] = run(engine, scenario)
    assert completion.finish_reason == "length" and len(completion.token_ids) == TOKENS


def test_cancelled_while_the_prompt_is_being_taken(engine: Engine) -> None:
    gate = Gate(engine)

    async def scenario(served: AsyncEngine) -> None:
        first = await served.submit([1], ENDLESS)
        await in_thread(gate.next_batch)  # the thread is busy: the next prompt stays in its queue
        second = asyncio.create_task(served.submit([2], ENDLESS))
        await asyncio.sleep(0.05)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        first.abort()
        gate.let_pass(1000)
        await tokens(served, [3])

    run(engine, scenario)


def test_leaving_the_context_aborts_every_choice(engine: Engine) -> None:
    async def scenario(served: AsyncEngine) -> None:
        params = SamplingParams(n=5, max_tokens=800, ignore_eos=True)
        async with await served.submit([1, 2], params) as stream:
            await anext(stream)
        await tokens(served, [3])  # the engine has gone on
        assert not engine.requests

    run(engine, scenario)


def test_a_caller_whose_event_loop_is_gone(engine: Engine) -> None:
    async def scenario(served: AsyncEngine) -> None:
        async def walk_away() -> None:
            stream = await served.submit([1, 2], ENDLESS)
            await anext(stream)

        await in_thread(lambda: asyncio.run(walk_away()))
        await tokens(served, [3])
        assert not engine.requests

    run(engine, scenario)


# Failures


class Faulty:
    """A runner that fails where `wrong(call number, batch)` says so."""

    def __init__(self, engine: Engine, wrong: Callable[[int, Any], bool]) -> None:
        self.run, self.wrong, self.calls = engine.runner.run, wrong, 0
        engine.runner.run = self  # type: ignore[method-assign, assignment]

    def __call__(self, batch: Any, *rest: Any) -> Any:
        self.calls += 1
        if self.wrong(self.calls, batch):
            raise RuntimeError("device lost\nsecond line")
        return self.run(batch, *rest)


def test_a_step_that_fails_now_and_then_changes_no_token(engine: Engine) -> None:
    asked = prompts(3)
    expected = [alone(engine, prompt) for prompt in asked]
    Faulty(engine, lambda call, batch: call in (3, 20))

    async def scenario(served: AsyncEngine) -> Any:
        return await asyncio.gather(*(tokens(served, prompt) for prompt in asked))

    assert run(engine, scenario) == expected


def test_what_fails_twice_fails_alone(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """The poisoned prompt fails every batch that it is part of; who comes later is served."""
    poison, good = [13, 13, 13], random_ids(160, 20)
    expected = alone(engine, good)
    Faulty(engine, lambda call, batch: any(chunk.seq.prompt_ids == poison for chunk in batch.chunks))

    async def scenario(served: AsyncEngine) -> Any:
        with pytest.raises(StepFailedError, match="device lost") as failure:
            await tokens(served, poison)
        assert "second line" not in str(failure.value)
        return await tokens(served, good)

    assert run(engine, scenario) == expected
    assert "device lost" in caplog.text


def test_a_prompt_whose_second_chunk_always_fails_does_not_loop(engine: Engine) -> None:
    faulty = Faulty(engine, lambda call, batch: any(chunk.start > 0 for chunk in batch.chunks))

    async def scenario(served: AsyncEngine) -> None:
        with pytest.raises(StepFailedError):
            await tokens(served, random_ids(160, 50))

    run(engine, scenario)
    assert faulty.calls == 4  # two chunks, twice


def test_a_failure_of_the_books_ends_what_runs(engine: Engine) -> None:
    step, healthy = engine.step, threading.Event()

    def broken() -> Any:
        if not healthy.is_set():
            raise KeyError("books")
        return step()

    engine.step = broken  # type: ignore[method-assign]

    async def scenario(served: AsyncEngine) -> Any:
        for stream in [await served.submit([i], ENDLESS) for i in range(2)]:
            with pytest.raises(StepFailedError, match="KeyError"):
                await stream.completions()
        healthy.set()
        return await tokens(served, [3])

    assert len(run(engine, scenario)[0]) == TOKENS


def test_non_finite_logits_fail_only_their_own_prompt(engine: Engine) -> None:
    good, poison = random_ids(160, 9), [13, 13, 13]
    expected = alone(engine, good)
    plain = engine.runner.run

    @torch.inference_mode()
    def poisoned(batch: Any, *rest: Any) -> Any:
        result = plain(batch, *rest)
        for row, chunk in enumerate(result.sampled):
            if chunk.seq.prompt_ids == poison and len(chunk.seq.output_ids) == 2:
                result.logits[row] = torch.nan
        return result

    engine.runner.run = poisoned  # type: ignore[method-assign]

    async def scenario(served: AsyncEngine) -> Any:
        other = asyncio.create_task(tokens(served, good))
        got = []
        with pytest.raises(RequestError, match="non-finite"):
            async for update in await served.submit(poison, GREEDY):
                got.append(update)
        assert len(got) == 2  # what came before the failure was delivered
        return await other

    assert run(engine, scenario) == expected


# The end


def test_close_ends_all_who_wait(engine: Engine) -> None:
    gate = Gate(engine)

    async def scenario(served: AsyncEngine) -> None:
        submitted = [asyncio.create_task(served.submit([i], ENDLESS)) for i in range(4)]
        await in_thread(gate.next_batch)
        gate.let_pass()
        readers = [asyncio.create_task(stream.completions()) for stream in await asyncio.gather(*submitted)]
        await in_thread(gate.next_batch)
        late = asyncio.create_task(served.submit([7], GREEDY))
        await asyncio.sleep(0.05)
        closing = [asyncio.create_task(served.close()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert served.closed
        gate.let_pass(1000)
        await asyncio.gather(*closing)
        for result in await asyncio.gather(*readers, late, return_exceptions=True):
            assert isinstance(result, EngineClosedError)
        with pytest.raises(EngineClosedError):
            await served.submit([1], GREEDY)

    run(engine, scenario)
    assert not any(thread.name == "labkit-engine" for thread in threading.enumerate())


@pytest.mark.slow
def test_a_script_that_forgets_to_close_ends_well() -> None:
    script = """
import asyncio
from labkit.engine.async_engine import AsyncEngine
from labkit.engine.config import EngineConfig
from labkit.engine.core import Engine
from labkit.engine.sampling_params import SamplingParams

async def main():
    served = AsyncEngine(Engine(EngineConfig("labkit-tiny")))
    await anext(await served.submit([1, 2, 3], SamplingParams(max_tokens=1000, ignore_eos=True)))
    return served

kept = asyncio.run(main())
print("done")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")

"""The official client against the real model: streamed and whole answers agree, settings take effect."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from helpers.live_server import NAME, LiveServer

from labkit.engine.chat_template import render_chat

QUESTIONS = ["What is the capital of France?", "Hi", "Name a colour.", "Who are you?", "2 + 2 =", "Tell me a story."]


def ask(client: openai.OpenAI, text: str = QUESTIONS[0], **settings: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=NAME, messages=messages, **{"max_tokens": 12, **settings})


def texts(chunks: Any) -> dict[int, str]:
    """What a stream said, by choice."""
    said: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            said[choice.index] = said.get(choice.index, "") + (choice.delta.content or "")
    return said


def test_models(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert model.id == client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


@pytest.mark.parametrize("question", QUESTIONS[:3])
def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI, question: str) -> None:
    whole = ask(client, question, temperature=0)
    assert whole.choices[0].message.content
    assert texts(ask(client, question, temperature=0, stream=True)) == {0: whole.choices[0].message.content}


def test_usage_counts_the_prompt_through_the_template(client: openai.OpenAI, live: LiveServer) -> None:
    tokenizer = live.engine.tokenizer
    assert tokenizer is not None
    prompt = len(tokenizer.encode(render_chat(tokenizer, [{"role": "user", "content": "Hi"}])))
    usage = ask(client, "Hi", max_tokens=5, extra_body={"ignore_eos": True}).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (prompt, 5, prompt + 5)


def test_a_seed_makes_an_answer_reproducible(client: openai.OpenAI, seed: int) -> None:
    first, again = (ask(client, temperature=1.5, seed=seed, n=2) for _ in range(2))
    streamed = texts(ask(client, temperature=1.5, seed=seed, n=2, stream=True))
    assert {c.index: c.message.content for c in first.choices} == streamed
    assert [c.message.content for c in again.choices] == [c.message.content for c in first.choices]


def test_without_a_seed_answers_differ(client: openai.OpenAI) -> None:
    answers = ask(client, temperature=2, n=4, max_tokens=20, extra_body={"ignore_eos": True}).choices
    assert len({choice.message.content for choice in answers}) > 1


def test_many_clients_get_what_each_gets_alone(client: openai.OpenAI) -> None:
    def greedy(question: str) -> str:
        return texts(ask(client, question, temperature=0, stream=True, max_tokens=8))[0]

    alone = [greedy(question) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        assert list(pool.map(greedy, QUESTIONS)) == alone


def test_text_parts_and_developer_messages(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of France?"}]
    joined, plain = ask(client, parts, temperature=0), ask(client, temperature=0)  # type: ignore[arg-type]
    assert joined.choices[0].message == plain.choices[0].message
    counts = [
        client.chat.completions.create(
            model=NAME,
            messages=[{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            max_tokens=1,
        ).usage.prompt_tokens
        for role in ("system", "developer")
    ]
    assert counts[0] == counts[1]


def test_an_answer_can_be_sent_back_as_it_came(client: openai.OpenAI) -> None:
    """Clients append the message object with all its nulls to the conversation."""
    answer = ask(client, temperature=0).choices[0].message.model_dump()
    messages: Any = [{"role": "user", "content": "Hi"}, answer, {"role": "user", "content": "Go on."}]
    assert client.chat.completions.create(model=NAME, messages=messages, max_tokens=2).usage.completion_tokens > 0


def test_the_template_takes_its_settings(client: openai.OpenAI) -> None:
    settings = {"chat_template_kwargs": {"enable_thinking": False}}
    changed = ask(client, max_tokens=1, extra_body=settings).usage.prompt_tokens
    assert changed > ask(client, max_tokens=1).usage.prompt_tokens


def test_without_a_limit_the_answer_fills_the_sequence(client: openai.OpenAI) -> None:
    answer = ask(client, "x " * 470, max_tokens=None, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"


def test_logprobs_are_alike_in_both_modes(client: openai.OpenAI) -> None:
    settings = {"temperature": 0, "logprobs": True, "top_logprobs": 3, "max_tokens": 4}
    whole = ask(client, **settings).choices[0].logprobs.content
    chunks = [c for chunk in ask(client, stream=True, **settings) for c in chunk.choices if c.logprobs]
    assert [entry for c in chunks for entry in c.logprobs.content] == whole
    assert len(whole) == 4
    for entry in whole:
        assert entry.logprob == entry.top_logprobs[0].logprob < 0  # greedy: the best one was chosen
        assert bytes(entry.bytes).decode() == entry.token
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1
        assert len(entry.top_logprobs) == 3


def test_logit_bias_and_penalties_reach_the_sampler(client: openai.OpenAI, live: LiveServer) -> None:
    assert live.engine.tokenizer is not None
    [token] = live.engine.tokenizer.encode("A")
    forced = ask(client, temperature=0, max_tokens=3, logit_bias={str(token): 100})
    assert forced.choices[0].message.content == "AAA"
    varied = ask(client, temperature=0, max_tokens=3, logit_bias={str(token): 30}, frequency_penalty=2)
    assert varied.choices[0].message.content.startswith("A")

"""What goes over the wire, in answers whose tokens the test has chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest
from helpers.live_server import NAME, LiveServer

Script = Callable[[Sequence[Sequence[int]]], None]
PIECES = ["ok ", "😀", " é", "日本", " done", "\u2028", "\x85line\n\nnext"]


def body(**settings: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": [{"role": "user", "content": "say it"}], "max_tokens": 64, **settings}


def whole(live: LiveServer, **settings: Any) -> dict[str, Any]:
    with live.http() as http:
        response = http.post("/v1/chat/completions", json=body(**settings))
    assert response.status_code == 200, response.text
    return response.json()


def stream(live: LiveServer, **settings: Any) -> list[dict[str, Any]]:
    """The chunks, read from the raw event stream; its form is checked on the way."""
    with live.http() as http:
        response = http.post("/v1/chat/completions", json=body(stream=True, **settings))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, end = response.content.decode().split("\n\n")
    assert end == "" and events.pop() == "data: [DONE]"
    assert all(event.startswith("data: ") and len(event.splitlines()) == 1 for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def deltas(chunks: list[dict[str, Any]], index: int = 0) -> list[str]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [choice["delta"].get("content", "") for choice in choices if choice["index"] == index]


def endings(chunks: list[dict[str, Any]]) -> list[tuple[int, str]]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return sorted((choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"])


@pytest.fixture
def encode(live: LiveServer, client: openai.OpenAI) -> Callable[[str], list[int]]:
    """A text as tokens, the end token behind it."""
    tokenizer = live.engine.tokenizer
    assert tokenizer is not None
    return lambda text: [*tokenizer.encode(text), tokenizer.eos_ids[0]]


def test_the_form_of_chunks(live: LiveServer, script: Script, encode: Callable[[str], list[int]]) -> None:
    script([encode("Hello there")])
    chunks = stream(live)
    first, *middle, last = chunks
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert first["object"] == "chat.completion.chunk" and first["model"] == NAME
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(c["choices"][0]["delta"].keys() == {"content"} and c["choices"][0]["delta"]["content"] for c in middle)
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "stop"
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
    assert not any("usage" in c for c in chunks)


def test_the_official_client_reads_both_forms(
    client: openai.OpenAI, script: Script, encode: Callable[[str], list[int]]
) -> None:
    text = "".join(PIECES)
    script([encode(text)])
    answer = client.chat.completions.create(**body())
    assert answer.choices[0].message.content == text
    chunks = list(client.chat.completions.create(**body(stream=True)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_no_delta_holds_half_a_character(
    live: LiveServer, script: Script, encode: Callable[[str], list[int]], seed: int
) -> None:
    text = "".join(PIECES[(seed >> i) % len(PIECES)] for i in range(12)) + "😀"
    script([encode(text)])
    pieces = deltas(stream(live, max_tokens=400))
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("ending", ["limit", "replacement character"])
def test_the_end_flushes_what_was_held_back(
    live: LiveServer, script: Script, encode: Callable[[str], list[int]], ending: str
) -> None:
    smile = encode("😀")[:-1]
    assert len(smile) > 2
    tokens = encode("hi ")[:-1] + smile[:2] if ending == "limit" else encode("end\ufffd")
    script([tokens])
    limit = len(tokens)
    chunks, answer = stream(live, max_tokens=limit), whole(live, max_tokens=limit)
    assert "".join(deltas(chunks)) == answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["message"]["content"].endswith("\ufffd")
    reason = "length" if ending == "limit" else "stop"
    assert endings(chunks) == [(0, reason)] and answer["choices"][0]["finish_reason"] == reason
    assert answer["usage"]["completion_tokens"] == limit


def test_two_choices_with_their_own_ends_and_one_sum(
    live: LiveServer, script: Script, encode: Callable[[str], list[int]]
) -> None:
    """One ends by itself, the other at the limit; usage adds both and counts the prompt once."""
    short, long = encode("a short one"), encode("one two three four five six seven eight nine ten")
    limit = len(short) + 2
    assert len(long) > limit
    script([short, long])
    chunks = stream(live, n=2, max_tokens=limit, stream_options={"include_usage": True})
    answer = whole(live, n=2, max_tokens=limit)
    assert endings(chunks) == [(0, "stop"), (1, "length")]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]
    for index in range(2):
        assert "".join(deltas(chunks, index)) == answer["choices"][index]["message"]["content"]
    *others, last = chunks
    assert last["choices"] == [] and last["usage"] == answer["usage"]
    assert all(chunk["usage"] is None for chunk in others)
    assert answer["usage"]["completion_tokens"] == len(short) + limit
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + len(short) + limit


@pytest.mark.parametrize("stop", ["STOP", ["zzz", "STOP"]])
@pytest.mark.parametrize("included", [False, True])
def test_stop_strings_are_held_back_and_cut_off(
    live: LiveServer, script: Script, encode: Callable[[str], list[int]], stop: Any, included: bool
) -> None:
    script([encode("before ST not yet STOP behind")])
    settings = {"stop": stop, "include_stop_str_in_output": included}
    chunks, answer = stream(live, **settings), whole(live, **settings)
    expected = "before ST not yet " + ("STOP" if included else "")
    assert answer["choices"][0]["message"]["content"] == "".join(deltas(chunks)) == expected
    assert endings(chunks) == [(0, "stop")] and answer["choices"][0]["finish_reason"] == "stop"


def test_stop_token_ids_and_special_tokens(
    live: LiveServer, script: Script, encode: Callable[[str], list[int]]
) -> None:
    tokens = encode("one<|im_start|>two")
    script([tokens])
    assert whole(live)["choices"][0]["message"]["content"] == "onetwo"
    shown = whole(live, skip_special_tokens=False)["choices"][0]["message"]["content"]
    assert shown == "one<|im_start|>two"
    [special] = encode("<|im_start|>")[:-1]
    assert whole(live, stop_token_ids=[special])["choices"][0]["message"]["content"] == "one"

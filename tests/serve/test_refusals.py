"""Everything that is refused: the status, OpenAI's error shape, and the name of what is wrong."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from helpers.live_server import NAME, LiveServer

HI = [{"role": "user", "content": "Hi"}]


def post(live: LiveServer, **settings: Any) -> httpx.Response:
    with live.http() as http:
        return http.post("/v1/chat/completions", json={"model": NAME, "messages": HI, "max_tokens": 1, **settings})


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error, after a look at its form."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and "Traceback" not in response.text
    return error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("functions", []),
        ("tool_choice", "auto"),
        ("response_format", {"type": "json_object"}),
        ("user", "me"),
        ("store", True),
        ("best_of", 2),
        ("no_such_field", 0),
        ("häßlich\n", False),
        ("x" * 5000, 1),
    ],
)
def test_unsupported_fields_are_named(live: LiveServer, name: str, value: Any) -> None:
    error = refusal(post(live, **{name: value}))
    assert error["message"].startswith("Unsupported field ") and len(error["message"]) < 300
    assert repr(name)[1:70].rstrip("'") in error["message"]
    assert error["code"] == "unsupported_parameter" and error["type"] == "invalid_request_error"


def test_all_unsupported_fields_are_named_at_once(live: LiveServer) -> None:
    message = refusal(post(live, tools=[], audio={}, temperature="hot"))["message"]
    assert "'tools'" in message and "'audio'" in message


@pytest.mark.parametrize(
    ("where", "settings"),
    [
        ("messages[0].tool_calls", {"messages": [{"role": "assistant", "content": "x", "tool_calls": []}]}),
        ("stream_options.include_obfuscation", {"stream": True, "stream_options": {"include_obfuscation": True}}),
    ],
)
def test_unsupported_fields_deeper_down(live: LiveServer, where: str, settings: dict[str, Any]) -> None:
    assert refusal(post(live, **settings))["param"] == where


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", -0.1),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("n", 0),
        ("n", 1.0),
        ("n", "2"),
        ("stream", 1),
        ("stop", 5),
        ("stop", ""),
        ("stop", ["a", 5]),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_completion_tokens", 0),
        ("min_tokens", -1),
        ("seed", "x"),
        ("seed", 2**70),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"8192": 1}),
        ("logit_bias", {"5": 1, "05": 2}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", [1]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("presence_penalty", 2.5),
        ("repetition_penalty", 0),
        ("chat_template_kwargs", 1),
        ("chat_template_kwargs", {"messages": []}),
        ("chat_template_kwargs", {"self": 1}),
        ("messages", []),
        ("messages", None),
        ("messages", "Hi"),
        ("messages", ["Hi"]),
        ("model", 1),
    ],
)
def test_wrong_values_name_their_field(live: LiveServer, name: str, value: Any) -> None:
    error = refusal(post(live, **{name: value}))
    assert name in error["message"] and error["param"].startswith(name)


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/x-json"}])
def test_a_body_that_is_not_announced_as_json(live: LiveServer, headers: dict[str, str]) -> None:
    with live.http() as http:
        content = f'{{"model": "{NAME}", "messages": [{{"role": "user", "content": "x"}}]}}'.encode()
        error = refusal(http.post("/v1/chat/completions", content=content, headers=headers))
    assert "Content-Type: application/json" in error["message"]


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ({"content": "x"}, "role"),
        ({"role": "wizard", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}, "image_url"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "content"),
        ({"role": "user", "content": ["x"]}, "content"),
    ],
)
def test_malformed_messages(live: LiveServer, message: Any, word: str) -> None:
    error = refusal(post(live, messages=[*HI, message]))
    assert word in error["message"] and error["param"].startswith("messages[1]")


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 3, "max_completion_tokens": 4},
        {"top_logprobs": 2},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True}, "stream": False},
    ],
)
def test_settings_that_contradict_each_other(live: LiveServer, settings: dict[str, Any]) -> None:
    message = refusal(post(live, **settings))["message"]
    assert all(name in message for name in settings if name != "stream")


def test_neutral_values_are_no_demands(live: LiveServer) -> None:
    nulls = dict.fromkeys(("tools", "tool_choice", "functions", "user", "stop", "seed", "n", "logit_bias", "stream"))
    neutral = {"response_format": {"type": "text"}, "store": False}
    assert post(live, **nulls, **neutral).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b'{"model',
        b"",
        b"[]",
        b"nul",
        b'"text"',
        b"\xff\xfe",
        b'{"a": ' + b"[" * 100_000,
        b'{"n": ' + b"1" * 9999 + b"}",
    ],
    ids=["cut off", "empty", "list", "half a word", "text", "no utf-8", "too deep", "too many digits"],
)
def test_a_body_that_is_no_json_object(live: LiveServer, content: bytes) -> None:
    with live.http() as http:
        headers = {"content-type": "application/json"}
        refusal(http.post("/v1/chat/completions", content=content, headers=headers))


@pytest.mark.parametrize("text", [r"\ud800", r"a\udfffb"])
def test_half_a_surrogate_pair(live: LiveServer, text: str) -> None:
    content = f'{{"model": "{NAME}", "messages": [{{"role": "user", "content": "{text}"}}]}}'
    with live.http() as http:
        headers = {"content-type": "application/json"}
        refusal(http.post("/v1/chat/completions", content=content.encode(), headers=headers))


def test_not_a_number(live: LiveServer) -> None:
    content = f'{{"model": "{NAME}", "messages": [{{"role": "user", "content": "x"}}], "temperature": NaN}}'
    with live.http() as http:
        headers = {"content-type": "application/json"}
        error = refusal(http.post("/v1/chat/completions", content=content, headers=headers))
    assert "temperature" in error["message"]


def test_another_model(live: LiveServer, client: openai.OpenAI) -> None:
    error = refusal(post(live, model="gpt-none"), status=404)
    assert "gpt-none" in error["message"] and NAME in error["message"] and error["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-none", messages=HI)  # type: ignore[arg-type]


def test_a_prompt_too_long(live: LiveServer, client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "word " * 600}]
    for stream in (False, True):
        error = refusal(post(live, messages=long, stream=stream))
        assert error["code"] == "context_length_exceeded" and "512" in error["message"]
    with pytest.raises(openai.BadRequestError, match="Shorten the prompt"):
        client.chat.completions.create(model=NAME, messages=long)  # type: ignore[arg-type]
    assert post(live).status_code == 200  # and the server goes on


def test_other_paths_and_methods(live: LiveServer) -> None:
    with live.http() as http:
        refusal(http.get("/v1/nothing"), 404)
        refusal(http.get("/v1/chat/completions"), 405)
        assert http.get("/openapi.json").status_code == 200

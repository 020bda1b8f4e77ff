"""From loading to shutdown: health, clients that go away, engines that fail, a server that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from helpers.gate import Gate
from helpers.live_server import NAME, LiveServer, live_server

import serve
from labkit.engine.config import EngineConfig
from labkit.engine.core import Engine
from labkit.errors import CheckpointError, ConfigError, LabkitError, MissingExtraError
from labkit.model.weights import Progress
from serve.server import bind

ENDLESS = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "max_tokens": 400}
SHORT = ENDLESS | {"max_tokens": 2}


@pytest.fixture
def engine(tiny_path: Path) -> Engine:
    return Engine(EngineConfig(tiny_path, dtype="float32", max_seq_len=512, decode_batch_size=2))


@pytest.fixture
def fresh(engine: Engine) -> Iterator[LiveServer]:
    """A server whose engine a test may break."""
    with live_server(engine) as live:
        live.wait_until("ok")
        yield live


def wait_for(true: Any) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "it did not come true within 20 s"
        time.sleep(0.01)


# Loading


def test_health_while_the_model_loads(engine: Engine) -> None:
    finished = threading.Event()

    def load(progress: Progress) -> Engine:
        assert finished.wait(30)
        return engine

    with live_server(load) as live, live.http() as http:
        health, chat = http.get("/health"), http.post("/v1/chat/completions", json=SHORT)
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        assert chat.status_code == 503 and "loading" in chat.json()["error"]["message"]
        assert chat.headers["retry-after"] == "1"
        assert http.get("/v1/models").status_code == 200
        finished.set()
        live.wait_until("ok")
        assert (http.get("/health").status_code, http.get("/health").json()) == (200, {"status": "ok"})
        assert http.post("/v1/chat/completions", json=SHORT).status_code == 200


@pytest.mark.parametrize("error", [CheckpointError("Shard 2 is cut off.", cure="Fetch it again."), MemoryError("full")])
def test_health_after_loading_failed(error: Exception) -> None:
    def load(progress: Progress) -> Engine:
        raise error

    with live_server(load) as live, live.http() as http:
        live.wait_until("failed")
        health = http.get("/health")
        assert health.status_code == 503 and str(error) in health.json()["error"]
        assert http.post("/v1/chat/completions", json=SHORT).status_code == 503


def test_a_server_that_ends_while_it_loads() -> None:
    """Then the loading ends as well: at its next tensor, not at its last."""
    tensors: list[int] = []

    def load(progress: Progress) -> Engine:
        for done in range(3000):
            tensors.append(done)
            progress("loading", done, 3000)
            time.sleep(0.01)
        raise CheckpointError("The loading went on to its end.", cure="")

    with live_server(load) as live:
        wait_for(lambda: tensors)
        live.stop()
        assert live.service.status == "closed"
        wait_for(lambda: not any(thread.name == "labkit-load" for thread in threading.enumerate()))
    assert len(tensors) < 2000


# Clients that go away


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_away_frees_all_it_held(fresh: LiveServer, stream: bool, n: int) -> None:
    scheduler = fresh.engine.scheduler
    with fresh.http() as http, contextlib.suppress(httpx.ReadTimeout):
        body = ENDLESS | {"stream": stream, "n": n}
        with http.stream("POST", "/v1/chat/completions", json=body, timeout=1.0) as response:
            for _ in zip(range(4), response.iter_lines(), strict=False):
                assert scheduler.has_work
    wait_for(lambda: not scheduler.has_work)
    assert scheduler.pages.num_free == fresh.engine.num_pages
    scheduler.check_invariants()
    with fresh.http() as http:
        assert http.post("/v1/chat/completions", json=SHORT).status_code == 200


def test_a_client_that_goes_away_before_the_first_token(engine: Engine) -> None:
    gate = Gate(engine)
    with live_server(engine) as live:
        live.wait_until("ok")
        for _ in range(3):
            client = socket.create_connection(("127.0.0.1", int(live.url.rsplit(":", 1)[1])))
            client.sendall(raw_request())
            gate.next_batch()
            client.close()
            time.sleep(0.1)
            gate.let_pass()
            wait_for(lambda: not engine.requests)
        gate.let_pass(1000)
        assert engine.scheduler.pages.num_free == engine.num_pages


def raw_request() -> bytes:
    request = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions", json=ENDLESS | {"stream": True})
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + request.content


def test_the_others_go_on_when_one_goes_away(fresh: LiveServer) -> None:
    with fresh.openai() as client:
        ask: Any = {"model": NAME, "messages": ENDLESS["messages"], "temperature": 0, "max_tokens": 30}
        alone = client.chat.completions.create(**ask).choices[0].message.content
        leaver = client.chat.completions.create(**ask | {"max_tokens": 300}, stream=True)
        stayer = client.chat.completions.create(**ask, stream=True)
        next(iter(leaver))
        leaver.close()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stayer) == alone


# Engines that fail


def fail_from(engine: Engine, call: int) -> None:
    """From that step on, the model fails."""
    run, calls = engine.runner.run, iter(range(1, 1_000_000))

    def failing(*arguments: Any) -> Any:
        if next(calls) >= call:
            raise RuntimeError("device lost")
        return run(*arguments)

    engine.runner.run = failing  # type: ignore[method-assign]


def test_a_failing_engine_is_a_500(fresh: LiveServer) -> None:
    fail_from(fresh.engine, 1)
    with fresh.http() as http:
        response = http.post("/v1/chat/completions", json=SHORT)
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["type"] == "server_error" and "device lost" in error["message"]
    assert "Traceback" not in response.text and "Send it again" in error["message"]


def test_a_stream_that_breaks_off_says_so(fresh: LiveServer) -> None:
    fail_from(fresh.engine, 4)
    with fresh.openai() as client:
        stream: Any = client.chat.completions.create(
            model=NAME, messages=ENDLESS["messages"], max_tokens=50, stream=True
        )  # type: ignore[call-overload]
        chunks = []
        with pytest.raises(openai.APIError, match="device lost"):
            for chunk in stream:
                chunks.append(chunk)
    assert chunks and all(chunk.choices[0].finish_reason is None for chunk in chunks)


def test_a_bug_of_the_server_is_no_traceback(fresh: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.chat.prompt_ids", lambda *_: 1 / 0)
    with fresh.http() as http:
        response = http.post("/v1/chat/completions", json=SHORT)
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"
    assert "ZeroDivisionError" in response.text and "Traceback" not in response.text


# The end


def test_shutdown_ends_the_answers_under_way(fresh: LiveServer) -> None:
    with fresh.openai() as client:
        stream: Any = client.chat.completions.create(
            model=NAME, messages=ENDLESS["messages"], max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )  # type: ignore[call-overload]
        chunks = iter(stream)
        next(chunks)
        started = time.monotonic()
        fresh.stop()
        assert time.monotonic() - started < 4  # it does not wait for the 400 tokens
        with pytest.raises(openai.APIError, match="closed"):
            list(chunks)


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="in use"):
        serve.run("labkit-tiny", port=taken.getsockname()[1])


@pytest.mark.parametrize("settings", [{"host": "no such host"}, {"dtype": "int3"}, {"max_seq_len": 0}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        serve.run("labkit-tiny", **{"port": 0, **settings})


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    with pytest.raises(LabkitError, match="no-such-model"):
        serve.run("no-such-model", port=0)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.find_spec", lambda name: None if name == "fastapi" else object())
    with pytest.raises(MissingExtraError, match=r"fastapi.*pip install 'labkit-v100\[serve\]'"):
        serve.run("labkit-tiny")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_the_command_serves_until_a_signal(number: int) -> None:
    command = [sys.executable, "-m", "serve", "-m", "labkit-tiny", "--port", "0", "--served-model-name", NAME]
    root = Path(serve.__file__).parents[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        loading, ready = process.stderr.readline(), process.stderr.readline()
        assert "http://127.0.0.1:" in loading and "is served on" in ready
        with httpx.Client(trust_env=False, timeout=30) as http:
            address = ready.split(" on ")[1].split()[0]
            assert http.post(f"{address}/chat/completions", json=SHORT).status_code == 200
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read() == "The server has ended.\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.4])
def test_the_command_can_be_ended_while_it_loads(number: int, delay: float) -> None:
    command = [sys.executable, "-m", "serve", "-m", "labkit-tiny", "--port", "0"]
    with subprocess.Popen(command, cwd=Path(serve.__file__).parents[1], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr and "Loading" in process.stderr.readline()
        time.sleep(delay)
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read().endswith("The server has ended.\n")


@pytest.mark.parametrize("arguments", [["-m", "no-such-model"], ["--dtype", "int3"], ["--host", "no such host"]])
def test_the_command_fails_in_one_line(arguments: list[str]) -> None:
    from typer.testing import CliRunner

    from serve.__main__ import app

    result = CliRunner().invoke(app, [*arguments, "--port", "0"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("labkit: ") and "Traceback" not in result.output

"""One server on labkit-tiny for all tests of a file, and scripted answers where their text matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from helpers.live_server import LiveServer, live_server

from labkit.engine.config import EngineConfig
from labkit.engine.core import Engine
from labkit.engine.sampler import SampledToken, SampleRequest

Script = Callable[[Sequence[Sequence[int]]], None]


@pytest.fixture(scope="module")
def live(tiny_path: Path) -> Iterator[LiveServer]:
    with live_server(Engine(EngineConfig(tiny_path, dtype="float32", max_seq_len=512, decode_batch_size=4))) as server:
        server.wait_until("ok")
        yield server


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with live.openai() as client:
        yield client


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Makes the model say given tokens: a list of them for each choice."""

    def install(choices: Sequence[Sequence[int]]) -> None:
        def said(logits: Any, rows: Sequence[SampleRequest], *, num_valid: int) -> list[SampledToken]:
            return [SampledToken(choices[row.choice][len(row.output_ids)]) for row in rows]

        monkeypatch.setattr("labkit.engine.core.sample", said)

    return install

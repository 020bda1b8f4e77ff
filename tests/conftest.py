"""Fixtures of all tests: one torch thread per process, a fresh printed seed, and the models at hand."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from labkit.model.resolve import resolve_model

torch.set_num_threads(1)  # test processes run side by side


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A fresh seed, set everywhere; a failing test shows it, `--seed N` brings it back."""
    given = request.config.getoption("--seed")
    value = random.SystemRandom().randrange(2**31) if given is None else given
    print(f"seed {value}")
    random.seed(value)
    torch.manual_seed(value)
    return value


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts background jobs with Ctrl-C ignored, which children inherit: tests of interrupts need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="repeat a test with the seed that it printed")


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    """labkit-tiny: the trained 12 M-parameter Qwen3.5-architecture model of the package."""
    return resolve_model("labkit-tiny")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1, fetched into the user's cache at first use."""
    return resolve_model("smollm2")


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield

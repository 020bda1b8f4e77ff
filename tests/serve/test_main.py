"""``python -m serve``: its options, and what its errors look like."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from labkit.errors import ConfigError
from serve import __main__ as command


def test_every_option_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(command, "run", lambda model, **settings: seen.update(settings, model=model))
    result = CliRunner().invoke(command.app, ["-m", "labkit-tiny", "--executor", "torch", "--dtype", "float32"])
    assert result.exit_code == 0
    assert (seen["model"], seen["executor"], seen["dtype"]) == ("labkit-tiny", "torch", "float32")


def test_an_error_is_one_line_with_labkits_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConfigError("dtype is\n'x'.", cure="Choose another.")

    monkeypatch.setattr(command, "run", fail)
    result = CliRunner().invoke(command.app, [])
    assert (result.exit_code, result.output) == (1, "labkit: dtype is 'x'. Choose another.\n")

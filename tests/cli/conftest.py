"""``labkit ...`` within the test's own process: loading torch once serves them all."""

from __future__ import annotations

import io
import sys

import pytest
from helpers.command_line import Cli, Ended

from labkit.cli import main


class Terminal(io.TextIOWrapper):
    """An input that claims to be a person."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs ``labkit ...``, its output piped; stdin: bytes; terminal: whether they seem to be typed."""

    def run(*arguments: object, stdin: bytes = b"", terminal: bool = False) -> Ended:
        capsys.readouterr()
        source = (Terminal if terminal else io.TextIOWrapper)(io.BytesIO(stdin), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", source)
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code or 0
        assert isinstance(code, int)
        return Ended(code, *capsys.readouterr())

    return run

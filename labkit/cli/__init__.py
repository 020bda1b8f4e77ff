"""The command line: ``labkit ...``. Each command is a thin face over a function of the library."""

from labkit.cli.app import main

__all__ = ["main"]

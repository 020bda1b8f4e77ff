"""One run at a time in an output folder. The lock goes with the process, whatever ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labkit.device.user_files import locked
from labkit.errors import ConfigError


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Make the folder ``out`` if it is not there, and keep other runs out of it.

    Raises ConfigError if it is a file, or if another run writes it now; OSError from the disk.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file.", cure="Name a folder that is empty or does not exist.")
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(locked(out, wait=False))
        except BlockingIOError as error:
            message = f"Another run writes {out} now."
            raise ConfigError(message, cure="Wait until it has ended, or name another folder.") from error
        yield

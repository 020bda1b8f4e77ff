"""One run at a time in an output folder. The lock goes with the process, whatever ends it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from labkit.errors import ConfigError


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Make the folder ``out`` if it is not there, and keep other runs out of it.

    Raises ConfigError if it is a file, or if another run writes it now; OSError from the disk.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file.", cure="Name a folder that is empty or does not exist.")
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        yield


def _taken(out: Path) -> ConfigError:
    return ConfigError(f"Another run writes {out} now.", cure="Wait until it has ended, or name another folder.")


if sys.platform == "win32":
    import msvcrt

    @contextmanager
    def _locked(out: Path) -> Iterator[None]:
        place = Path(tempfile.gettempdir(), f"labkit-{sha256(str(out.resolve()).encode()).hexdigest()[:16]}.lock")
        with place.open("a+b") as file:
            file.seek(0)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError as error:
                raise _taken(out) from error
            yield
else:
    import fcntl

    @contextmanager
    def _locked(out: Path) -> Iterator[None]:
        handle = os.open(out, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _taken(out) from error
            yield
        finally:
            os.close(handle)

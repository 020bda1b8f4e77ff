"""Files that labkit keeps for a user: where they lie, and how they are written while others may read or write them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path


def user_cache_folder() -> Path:
    """``$LABKIT_CACHE``, else ``labkit`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; its ``~`` is not expanded."""
    chosen = os.environ.get("LABKIT_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "labkit"


def write_whole(target: Path, content: bytes, mode: int = 0o600) -> None:
    """Whole or not at all: written beside the target, so that the last step is an atomic rename. Raises OSError."""
    handle, scratch = tempfile.mkstemp(prefix=".new-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(scratch, mode)
        os.replace(scratch, target)
    except BaseException:
        os.unlink(scratch)
        raise


if sys.platform == "win32":
    import msvcrt

    @contextmanager
    def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
        """Keep other processes that lock ``folder`` out of it. The lock goes with the process, whatever ends it.

        Raises BlockingIOError at once where another holds it and ``wait`` is false, OSError from the disk.
        """
        place = Path(tempfile.gettempdir(), f"labkit-{sha256(str(folder.resolve()).encode()).hexdigest()[:16]}.lock")
        with place.open("a+b") as file:
            file.seek(0)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError as error:
                raise error if wait else BlockingIOError(*error.args) from error
            yield
else:
    import fcntl

    @contextmanager
    def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
        """Keep other processes that lock ``folder`` out of it. The lock goes with the process, whatever ends it.

        Raises BlockingIOError at once where another holds it and ``wait`` is false, OSError from the disk.
        """
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(handle)

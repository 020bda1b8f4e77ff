"""Files that labkit keeps for a user: where they lie, and how one is written while others may read it."""

from __future__ import annotations

import os
import tempfile
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

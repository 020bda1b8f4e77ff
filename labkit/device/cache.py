"""Compiled kernels on disk, filed under a digest of everything that they were made from.

Several processes may share the folder: a file appears whole or not at all, and what is in it proves itself by its own
digest. A file that fails that proof, or cannot be read, counts as absent and is made again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from labkit.device.user_files import user_cache_folder, write_whole

logger = logging.getLogger(__name__)


def kernel_cache_folder() -> Path:
    """``kernels`` in ``$LABKIT_CACHE``, else in ``labkit`` of the user's cache folder (``$XDG_CACHE_HOME``)."""
    return Path(os.path.expanduser(user_cache_folder())) / "kernels"


def digest(parts: Any) -> str:
    """SHA-256 of plain data: the same parts in the same order, the same name."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load(key: str) -> dict[str, Any] | None:
    """What was filed under this key; None if there is nothing, or nothing whole."""
    try:
        content = (kernel_cache_folder() / f"{key}.json").read_bytes()
    except OSError:
        return None
    proof, _, body = content.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != proof:
        return None
    try:
        document = json.loads(body)
        ptx, cubin, log = (document[name] for name in ("ptx", "cubin", "log"))
        if not isinstance(ptx, str) or not isinstance(log, str):
            return None
        return {"ptx": ptx, "cubin": base64.b64decode(cubin, validate=True) or None, "log": log}
    except (ValueError, KeyError, TypeError):  # whole, but not of ours
        return None


def store(key: str, document: dict[str, Any]) -> None:
    """File a document. Where the folder cannot be written, every process compiles anew, and is told so once."""
    body = json.dumps({**document, "cubin": base64.b64encode(document["cubin"] or b"").decode()}).encode()
    proof = hashlib.sha256(body).hexdigest().encode()
    folder = kernel_cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{key}.json", proof + b"\n" + body)
    except OSError as error:
        _tell_once(str(folder), str(error.strerror))


@cache
def _tell_once(folder: str, reason: str) -> None:
    logger.warning("Compiled kernels are not kept: %s cannot be written (%s). Set LABKIT_CACHE.", folder, reason)

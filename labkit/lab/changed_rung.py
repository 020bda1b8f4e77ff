"""A rung of a ladder with a piece of its text replaced, as files that can be compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit.device.sources import read_rung


@contextmanager
def changed_rung(op: str, rung: str, old: str, new: str) -> Iterator[tuple[Path, Path]]:
    """(the rung's file, the folder of its headers) with ``new`` in place of ``old`` wherever it stands.

    The files are gone afterwards. Raises ValueError if ``old`` stands nowhere: nothing would have changed.
    """
    source = read_rung(op, rung)
    texts = {source.name: source.text, **source.headers}
    if not any(old in text for text in texts.values()):
        raise ValueError(f"{old!r} stands neither in {source.name} nor in its headers")
    with TemporaryDirectory() as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new), encoding="utf-8")
        yield Path(folder, source.name), Path(folder)

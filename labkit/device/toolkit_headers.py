"""Which of the toolkit's headers a source reaches: what it is compiled to depends on them too.

They are found as the preprocessor finds them, except that no condition is looked at: a header more than is needed
costs one compilation when it changes, a header less would keep a stale result for good.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from labkit.device.sources import INCLUDE, Source


def toolkit_headers(source: Source, folders: tuple[Path, ...]) -> dict[str, str]:
    """Path below ``folders`` -> digest of the content, for every header that ``source`` reaches there.

    Looked up once in a process: a toolkit does not change under a running program.
    """
    own = tuple((name, tuple(INCLUDE.findall(text))) for name, text in source.headers.items())
    return _reached(tuple(INCLUDE.findall(source.text)), own, tuple(map(str, folders)))


@cache
def _reached(
    names: tuple[str, ...], own: tuple[tuple[str, tuple[str, ...]], ...], folders: tuple[str, ...]
) -> dict[str, str]:
    """own: what each header that is given to the compiler as text includes; these come before all files."""
    found: dict[str, str] = {}
    given = dict(own)
    wanted = [(name, folders) for name in names]
    asked = set(wanted)
    while wanted:
        name, places = wanted.pop()
        if name in given:
            includes, around = given[name], folders
        else:
            folder = next((place for place in places if os.path.isfile(os.path.join(place, name))), None)
            if folder is None:
                continue
            path = os.path.normpath(os.path.join(folder, name))
            found[_below(path, folders)], includes = _look(path)
            around = (os.path.dirname(path), *folders)
        new = {(include, around) for include in includes} - asked
        asked |= new
        wanted += new
    return dict(sorted(found.items()))


def _below(path: str, folders: tuple[str, ...]) -> str:
    """Without the folder: the same headers elsewhere are the same headers."""
    root = next((folder for folder in folders if path.startswith(os.path.join(folder, ""))), os.path.dirname(path))
    return os.path.relpath(path, root)


@cache
def _look(path: str) -> tuple[str, tuple[str, ...]]:
    """The digest of a header, and what it includes."""
    content = Path(path).read_bytes()
    return hashlib.sha256(content).hexdigest(), tuple(INCLUDE.findall(content.decode(errors="replace")))

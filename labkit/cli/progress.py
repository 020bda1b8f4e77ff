"""The progress bar of commands that take a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar() -> Iterator[Any]:
    """A callback (done, total, text) that draws a bar on a terminal and does nothing when the output is piped."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total, text: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


def counting(progress: Any, text: str) -> Any:
    """What a measurement that counts tokens calls: done, total."""
    return lambda done, total: progress(done, total, f"{text} {done} of {total} tokens")

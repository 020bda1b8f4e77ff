"""A bar while a model loads, on a terminal; nothing when the output is piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from labkit.model.weights import Progress as Callback


@contextmanager
def loading_bar() -> Iterator[Callback | None]:
    """Yield a callback (text, bytes so far, bytes in all) that draws the bar, or None where nobody would see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)

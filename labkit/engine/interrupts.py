"""Keep Ctrl-C (in a notebook: the stop button) out of bookkeeping that must not stop half-way."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back an interrupt that arrives within the block, and deliver it behind it.

    Only the main thread ever receives one; elsewhere, and where Python does not own the handler, this does nothing.
    """
    outside = threading.current_thread() is not threading.main_thread()
    if outside or sys.is_finalizing() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if arrived and callable(previous):
            previous(*arrived[0])

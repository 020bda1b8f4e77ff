"""What a caller of AsyncEngine holds: the news of its answers, handed over from the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from labkit.engine.outputs import Completion
from labkit.engine.request import Request, Update
from labkit.errors import LabkitError


class AnswerStream:
    """An async iterator over the Update of all n answers to one prompt, in the order in which they come.

    It ends when every answer has, or after ``abort``; leaving it as a context manager, or cancelling the task that
    waits for it, aborts what is unfinished. A failure of the engine is raised behind the updates that came before.

    An answer that is still growing belongs to the engine's thread: read the Update, and of its request only what
    stays as it was made (``sampling.choice``, ``params``) until the update says ``finished``.
    """

    def __init__(self, on_abort: Callable[[AnswerStream], None]) -> None:
        self.requests: list[Request] = []
        self._on_abort = on_abort
        self._loop = asyncio.get_running_loop()
        self._answered = asyncio.Event()
        self._news: asyncio.Queue[Update | None] = asyncio.Queue()
        self._unfinished = 0
        self._ended = False
        self._error: LabkitError | None = None

    # For the engine's thread. Each returns False if the caller's event loop is gone.

    def accept(self, requests: list[Request]) -> bool:
        """The prompt was taken: these are its answers in the making."""
        return self._hand_over(self._open, requests)

    def put(self, update: Update) -> bool:
        """News of one answer."""
        return self._hand_over(self._take, update)

    def fail(self, error: LabkitError) -> bool:
        """The prompt was refused, or its answers failed."""
        return self._hand_over(self._end, error)

    def _hand_over(self, call: Callable[..., None], *values: Any) -> bool:
        try:
            self._loop.call_soon_threadsafe(call, *values)
        except RuntimeError:  # the loop was closed under us
            return False
        return True

    # On the caller's event loop

    async def accepted(self) -> AnswerStream:
        """Wait until the engine has taken the prompt. Raises its refusal."""
        try:
            await self._answered.wait()
        except asyncio.CancelledError:
            self.abort()
            raise
        if self._error and not self.requests:  # else it failed after it was taken: that is news of its answers
            raise self._error
        return self

    def abort(self) -> None:
        """End what is unfinished, at the latest with the step under way; a second call does nothing."""
        if not self._ended:
            self._on_abort(self)
            self._end(None)

    async def completions(self) -> list[Completion]:
        """Wait for the end of all answers. Raises the engine's failure."""
        async for _ in self:
            pass
        return [request.completion() for request in self.requests]

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> Update:
        if self._ended and self._news.empty():
            raise StopAsyncIteration
        try:
            update = await self._news.get()
        except asyncio.CancelledError:
            self.abort()
            raise
        return self._checked(update)

    def _checked(self, update: Update | None) -> Update:
        if update is None:
            raise self._error or StopAsyncIteration
        self._unfinished -= update.finished
        self._ended = self._ended or self._unfinished == 0
        return update

    def _open(self, requests: list[Request]) -> None:
        self.requests, self._unfinished = requests, len(requests)
        self._answered.set()

    def _take(self, update: Update) -> None:
        if not self._ended:
            self._news.put_nowait(update)

    def _end(self, error: LabkitError | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            self._answered.set()
            self._news.put_nowait(None)  # wakes whoever waits

    async def __aenter__(self) -> AnswerStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

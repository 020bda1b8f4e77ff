"""The model behind the server: loading, ready, failed or closed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from labkit.engine.async_engine import AsyncEngine
from labkit.engine.core import Engine
from labkit.engine.llm import LLM
from labkit.errors import EngineClosedError, LabkitError
from labkit.model.weights import Progress
from serve.errors import model_not_found, unavailable

Source = LLM | Engine | Callable[[Progress], Engine]


class Service:
    """Owns the AsyncEngine from the app's start to its end.

    source: a loaded LLM or Engine, which is the server's alone from then on, or a function that loads an Engine. It
    is called in a thread when the app starts, so that the server answers meanwhile, and given a progress callback
    that raises EngineClosedError once nobody needs the model any more.
    on_ready, on_failure: called on the event loop once the model is there, or cannot be (``error`` then says why).
    """

    def __init__(self, source: Source, name: str) -> None:
        self.name = name
        self.created = int(time.time())
        self.error: LabkitError | None = None
        self.on_ready: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        self._source = source
        self._engine: AsyncEngine | None = None
        self._closed = False

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Loads while the app runs, closes when it ends."""
        self.start()
        yield
        await self.close()

    @property
    def status(self) -> str:
        """ "loading", "ok", "failed" or "closed"."""
        if self._closed or (self._engine and self._engine.closed):
            return "closed"
        if self.error:
            return "failed"
        return "ok" if self._engine else "loading"

    @property
    def engine(self) -> AsyncEngine:
        """The engine, once it is ready. Raises ApiError (503) before and after."""
        if self._engine is None or self.status != "ok":
            raise unavailable(f"The model is not ready: {self.status}.")
        return self._engine

    def check_model(self, name: str) -> None:
        """Raises ApiError (404) for another model's name."""
        if name != self.name:
            raise model_not_found(name, self.name)

    def start(self) -> None:
        """Take a loaded model, or begin to load one; returns at once."""
        if isinstance(self._source, (LLM, Engine)):
            self._finish(self._source)
            return
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._load, args=(self._source, loop), name="labkit-load").start()

    async def close(self) -> None:
        """End the answers under way and free the model. A second call does nothing."""
        self._closed = True
        if self._engine:
            await self._engine.close()

    def _load(self, load: Callable[[Progress], Engine], loop: asyncio.AbstractEventLoop) -> None:
        try:
            result: Engine | LabkitError = load(self._go_on)
        except LabkitError as error:
            result = error
        except Exception as error:  # out of memory, a broken installation: the server must say so and end
            result = LabkitError(f"Loading failed: {type(error).__name__}: {error}.", cure="`labkit doctor` may help.")
        with suppress(RuntimeError):  # the loop is closed: the server has ended meanwhile
            loop.call_soon_threadsafe(self._finish, result)

    def _go_on(self, text: str, done: int, total: int) -> None:
        """Ends the loading between two tensors: Ctrl-C must not have to wait for the rest of a large model."""
        if self._closed:
            raise EngineClosedError("The server ended while the model was loading.", cure="Start it again.")

    def _finish(self, result: LLM | Engine | LabkitError) -> None:
        if self._closed:
            return
        if isinstance(result, LabkitError):
            self.error = result
            self.on_failure()
            return
        self._engine = AsyncEngine(result.engine if isinstance(result, LLM) else result)
        self.on_ready()

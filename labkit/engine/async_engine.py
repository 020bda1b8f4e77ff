"""``AsyncEngine``: the engine for many callers at once, stepped by a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

from labkit.engine.answer_stream import AnswerStream
from labkit.engine.core import Engine
from labkit.engine.request import Request, Update
from labkit.engine.sampling_params import SamplingParams
from labkit.errors import EngineClosedError, LabkitError, StepFailedError

_log = logging.getLogger(__name__)


class AsyncEngine:
    """Takes prompts from event loops and streams their answers back.

    One thread owns the Engine: it takes commands (submit, abort) between two steps, and sleeps while there is
    nothing to compute. From now on nobody else may call the engine; its settings and tokenizer may be read.

        async with AsyncEngine(engine) as served:
            async for update in await served.submit(prompt_ids, SamplingParams()):
                print(update.text, end="")
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # nothing enters the queue once it is closed
        self._closed = False
        self._live: dict[Request, AnswerStream] = {}  # from here on only the thread's
        self._suspects: set[Request] = set()  # whose batch failed since their last token
        self._thread = threading.Thread(target=self._run, name="labkit-engine", daemon=True)
        self._thread.start()
        # A thread that is inside torch when the interpreter ends would take the process down with it.
        weakref.finalize(self, _end_thread, self._commands, self._thread)

    @property
    def closed(self) -> bool:
        """True once it takes no more prompts."""
        return self._closed

    async def submit(self, prompt_ids: Sequence[int], params: SamplingParams) -> AnswerStream:
        """Queue a prompt; returns the stream of its params.n answers.

        Raises what Engine.submit refuses (RequestError, ConfigError, TokenizerError), or EngineClosedError.
        """
        stream = AnswerStream(self._send_abort)
        if not self._send(partial(self._admit, stream, list(prompt_ids), params)):
            raise _closed_error()
        return await stream.accepted()

    async def close(self) -> None:
        """End all answers (their streams raise EngineClosedError) and the thread. A second call only waits."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _send(self, command: Callable[[], None]) -> bool:
        with self._gate:
            if not self._closed:
                self._commands.put(command)
            return not self._closed

    def _send_abort(self, stream: AnswerStream) -> None:
        self._send(partial(self._drop, stream))  # a closed engine has dropped it already

    # Everything below runs in the thread

    def _run(self) -> None:
        try:
            while self._obey():
                self._step()
        finally:
            self._shut()

    def _obey(self) -> bool:
        """Carry out the commands that have come, or sleep until there is work. False: it is time to end."""
        while True:
            try:
                command = self._commands.get(block=not self._live)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _admit(self, stream: AnswerStream, prompt_ids: list[int], params: SamplingParams) -> None:
        if self._closed:
            stream.fail(_closed_error())
            return
        try:
            made = self.engine.submit(prompt_ids, params)
        except LabkitError as error:
            stream.fail(error)
        except Exception as error:
            stream.fail(_failure(error))
        else:
            self._live.update((request, stream) for request in made)
            if not stream.accept(made):
                self._drop(stream)

    def _drop(self, stream: AnswerStream) -> None:
        """Abort what is left of a stream's answers; their pages are free before the next step."""
        for request in [request for request, owner in self._live.items() if owner is stream]:
            self.engine.abort(request)
            self._forget(request)

    def _forget(self, request: Request) -> None:
        del self._live[request]
        self._suspects.discard(request)

    def _step(self) -> None:
        before = {request: request.seq.num_preemptions for request in self._live}
        try:
            updates = self.engine.step()
        except Exception as error:  # whatever a model can raise: out of memory, a kernel, a bug
            _log.error("A step failed: %s", error, exc_info=True)
            self._after_failure(before, error)
            return
        for update in updates:
            self._deliver(update)

    def _deliver(self, update: Update) -> None:
        request = update.request
        stream = self._live.get(request)
        if stream is None:  # its stream failed a moment ago, in another of its answers
            return
        self._suspects.discard(request)
        if update.finished:
            self._forget(request)
        if request.error:
            self._give_up(stream, request.error)
        elif not stream.put(update):
            self._drop(stream)

    def _after_failure(self, before: dict[Request, int], cause: Exception) -> None:
        """The engine has set the batch back to recompute. What fails again before its next token is given up.

        If nothing was set back, the fault lies in the bookkeeping and not in a batch: then everything is given up.
        """
        batch = {request for request, count in before.items() if request.seq.num_preemptions > count}
        failed = batch & self._suspects if batch else set(before)
        self._suspects |= batch
        for request in failed:
            if request in self._live:
                self._give_up(self._live[request], _failure(cause))

    def _give_up(self, stream: AnswerStream, error: LabkitError) -> None:
        stream.fail(error)
        self._drop(stream)

    def _shut(self) -> None:
        """Nobody is left waiting, however the thread came to its end."""
        with self._gate:
            self._closed = True
        streams = set(self._live.values())
        for stream in streams:
            stream.fail(_closed_error())
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()
        for stream in streams:
            self._drop(stream)


def _end_thread(commands: queue.SimpleQueue[Callable[[], None] | None], thread: threading.Thread) -> None:
    commands.put(None)
    thread.join()


def _closed_error() -> EngineClosedError:
    return EngineClosedError("The engine was closed.", cure="Start it again, then send the request again.")


def _failure(cause: Exception) -> StepFailedError:
    reason = next(iter(str(cause).splitlines()), "")
    error = StepFailedError(
        f"The model failed while it computed this request: {type(cause).__name__}: {reason}",
        cure="Send it again; if it fails again, the log of the engine holds the whole cause.",
    )
    error.__cause__ = cause
    return error

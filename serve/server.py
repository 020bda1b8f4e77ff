"""The process around the app: its socket, its signals, its end."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from labkit.engine.config import EngineConfig
from labkit.engine.core import Engine
from labkit.engine.progress import loading_bar
from labkit.errors import ConfigError
from labkit.model.weights import Progress
from serve.app import create_app

BACKLOG = 1024  # connections that may wait to be accepted
GRACE_SECONDS = 5  # for connections that do not end by themselves at shutdown


def serve_model(model: str, host: str, port: int, name: str, settings: dict[str, Any]) -> None:
    """Listen at once, load meanwhile, serve until a signal. Raises ConfigError or what loading raises."""
    config = EngineConfig(model=model, **settings)  # refuses wrong settings before anything starts
    with bind(host, port) as listener, _sigterm_as_interrupt():
        app = create_app(partial(_load, config), name)
        server = Server(app)
        address = url(listener)
        service = app.state.service
        service.on_ready = lambda: _say(f"{name} is served on {address}/v1 (Ctrl-C ends it)")
        service.on_failure = server.stop
        _say(f"Loading {name}; {address}/health tells when it is ready.")
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            _say("The server has ended.")
        if service.error:
            raise service.error


def _load(config: EngineConfig, go_on: Progress) -> Engine:
    with loading_bar() as draw:

        def progress(text: str, done: int, total: int) -> None:
            go_on(text, done, total)
            if draw:
                draw(text, done, total)

        return Engine(config, progress)


class Server(uvicorn.Server):
    """uvicorn, except that the answers under way end first, so that no connection waits for them."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS))
        self._service = app.state.service

    def stop(self) -> None:
        """Make ``run`` return soon; from any thread."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.close()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises ConfigError if the address cannot be had."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"The host {host!r} is unknown ({error}).", cure="Use --host 127.0.0.1.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Cannot listen on {host} port {port}: {error.strerror}.", cure="Choose another with --port or --host."
        ) from error
    return listener


def url(listener: socket.socket) -> str:
    """Where clients reach the socket, as http://host:port."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the process like Ctrl-C: in order, and with exit status 0."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

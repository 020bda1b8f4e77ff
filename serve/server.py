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
    with bind(host, port) as listener:
        app = create_app(partial(_load, config), name)
        server, service, address = Server(app), app.state.service, url(listener)
        service.on_ready = lambda: _say(f"{name} is served on {address}/v1 (Ctrl-C ends it)")
        service.on_failure = server.stop
        with _ended_by_signals(server):
            _say(f"Loading {name}; {address}/health tells when it is ready.")
            server.run(sockets=[listener])
    if service.error:
        raise service.error
    _say("The server has ended.")


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
def _ended_by_signals(server: Server) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the server in order, with exit status 0, at whatever moment they come.

    uvicorn has its own handlers while it runs, and gives the signal back to these when it has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""A real server on a free port of this machine, in a thread, for real clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import openai

from labkit.engine.core import Engine
from serve.app import create_app
from serve.server import Server, bind, url
from serve.service import Service, Source

NAME = "tiny"


@dataclass
class LiveServer:
    """A running server, and how to talk to it."""

    url: str
    server: Server
    service: Service
    thread: threading.Thread

    @property
    def engine(self) -> Engine:
        """The engine behind it; to be looked at only."""
        return self.service.engine.engine

    def wait_until(self, status: str) -> None:
        """Wait until the service says so."""
        deadline = time.monotonic() + 60
        while self.service.status != status:
            assert time.monotonic() < deadline, f"the server stays {self.service.status}"
            time.sleep(0.01)

    def openai(self) -> openai.OpenAI:
        """The official client; it does not try again, so that a test sees every error."""
        transport = openai.DefaultHttpxClient(trust_env=False)
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", http_client=transport, max_retries=0)

    def http(self) -> httpx.Client:
        """A plain client, for what the official one would not send."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def stop(self) -> None:
        """End the server and wait for it."""
        self.server.stop()
        self.thread.join(30)
        assert not self.thread.is_alive(), "the server did not end"


@contextmanager
def live_server(source: Source) -> Iterator[LiveServer]:
    """Serve under the name `tiny` while the block runs."""
    app = create_app(source, NAME)
    with bind("127.0.0.1", 0) as listener:
        server = Server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        live = LiveServer(url(listener), server, app.state.service, thread)
        try:
            yield live
        finally:
            live.stop()

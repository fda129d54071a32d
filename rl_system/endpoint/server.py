"""The endpoint's HTTP server: one event loop, one renderer, any number of sessions.

Owns the sessions that are open and their keys. Invariants: a session's key is a secret of its own that is refused from the
moment when the session is closed; the server listens where it is told to, on loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator

import uvicorn

from rl_system.chat.agent import Limits
from rl_system.chat.renderer import Renderer
from rl_system.endpoint.http import EndpointApp, OpenSession
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.record import SessionRecord
from rl_system.endpoint.sessions import Sample, Session

KEEP_ALIVE_S = 120
"""A client that comes back later than that opens a new connection."""
STOP_TIMEOUT_S = 5.0
BACKLOG = 2048


class _Uvicorn(uvicorn.Server):
    """Leaves signals alone: they are for whoever runs the endpoint."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class EndpointServer:
    def __init__(self, renderer: Renderer, *, host: str = "127.0.0.1", max_body: int = 8 << 20) -> None:
        self._renderer, self._host = renderer, host
        self._sessions: dict[str, OpenSession] = {}
        self._app = EndpointApp(self._sessions, renderer, max_body)
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    @property
    def base_url(self) -> str:
        """Without the protocol's path: `http://host:port`."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Listen on a free port."""
        _ = self._renderer.longest_token  # takes a moment, which no call should wait for
        self._socket = socket.create_server((self._host, 0), backlog=BACKLOG)
        config = uvicorn.Config(
            self._app, http="httptools", ws="none", lifespan="off", log_config=None, log_level="error", access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S, server_header=False, date_header=False, backlog=BACKLOG,
        )  # fmt: skip
        self._server = _Uvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise RuntimeError("the endpoint's server ended during its start")
            await asyncio.sleep(0.01)

    def open_session(self, name: str, sample: Sample, limits: Limits, serving: Serving, *, ordered: bool = False) -> str:
        """A new session's key. See `Session`."""
        key = f"sk-episode-{secrets.token_urlsafe(32)}"
        self._sessions[key] = OpenSession(Session(self._renderer, limits, sample, name, ordered), serving)
        return key

    async def close_session(self, key: str) -> SessionRecord:
        """What is left of it. KeyError where it is not open."""
        return await self._sessions.pop(key).session.close()

    async def stop(self) -> None:
        """Close all sessions, then the server."""
        while self._sessions:  # of which others may be closed meanwhile
            await self.close_session(next(iter(self._sessions)))
        if self._server is not None:
            self._server.should_exit = True
            _, running = await asyncio.wait({self._serving}, timeout=STOP_TIMEOUT_S)
            if running:
                self._server.force_exit = True
                await self._serving

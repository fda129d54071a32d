"""A server with sessions whose engine a test writes itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from rl_system.chat.renderer import Renderer
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.server import EndpointServer
from rl_system.endpoint.sessions import Session
from tests.rl_system.chat.dialogues import make_renderer
from tests.rl_system.endpoint.clients import Engine, bounds, written

TIMEOUT_S = 120


@dataclass
class Door:
    """One open session and what its engine sees."""

    server: EndpointServer
    key: str
    engine: Engine

    @property
    def session(self) -> Session:
        return self.server._sessions[self.key].session

    @property
    def base_url(self) -> str:
        return f"{self.server.base_url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        return self.server.base_url


def opened(server: EndpointServer, *texts: str, serving: Serving | None = None, gate: asyncio.Event | None = None, **limits) -> Door:
    """A session whose calls are answered with `texts`."""
    engine = Engine(written(server._renderer, *texts), gate)
    limits = {"max_turns": 1000} | limits
    key = server.open_session("test", engine, bounds(**limits), serving or Serving())
    return Door(server, key, engine)


@contextlib.asynccontextmanager
async def serving(renderer: Renderer | None = None, **options) -> AsyncIterator[EndpointServer]:
    server = EndpointServer(renderer or make_renderer(), **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT_S))

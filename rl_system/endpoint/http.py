"""The endpoint as an ASGI application: from a request's bytes to a session's call, and back.

Owns nothing but requests under way. Invariants: a request without the key of an open session is refused before its body is
read; a client that is gone leaves nothing in an engine; whatever goes wrong in here fails the session, so that no episode is
scored on an answer that it never got.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rl_system.chat.renderer import Renderer
from rl_system.endpoint import anthropic_messages, chat_completions, models, responses
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.refusals import Refused, SamplingFailed
from rl_system.endpoint.sessions import Session

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

BODY_TIMEOUT_S = 60.0
"""Longest that a client may take to send a request."""
JSON = b"application/json"
EVENTS = b"text/event-stream"
PROTOCOLS: dict[str, ModuleType] = {each.PATH: each for each in (chat_completions, responses, anthropic_messages)}
"""By the path of their calls."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenSession:
    session: Session
    serving: Serving


class EndpointApp:
    """sessions: by their keys; only those that are open. max_body: bytes of a request."""

    def __init__(self, sessions: dict[str, OpenSession], renderer: Renderer, max_body: int) -> None:
        self._sessions, self._renderer, self._max_body = sessions, renderer, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the endpoint speaks HTTP alone, not {scope['type']}")
        path, method = scope["path"].rstrip("/"), scope["method"]
        counted = path == anthropic_messages.COUNT_PATH
        protocol = anthropic_messages if counted else PROTOCOLS.get(path, chat_completions)
        try:
            if path == "/health":
                return await _reply(send, 200, b"{}")
            opened = self._opened(scope)
            if method == "GET" and path.startswith(models.PATH):
                return await _reply(send, 200, models.answer(path, opened.serving))
            if path not in PROTOCOLS and not counted:
                raise Refused(f"{method} {path} is nothing that is served here", 404, "not_found")
            if method != "POST":
                raise Refused(f"{path} is for POST", 405, "method_not_allowed")
            await (self._count(opened, scope, receive, send) if counted else self._call(protocol, opened, scope, receive, send))
        except Refused as refused:
            await _reply(send, refused.status, protocol.error(refused))
        except SamplingFailed as failure:
            await _reply(send, 503, protocol.error(Refused(str(failure), 503, "sampling_failed")))

    def _opened(self, scope: Scope) -> OpenSession:
        headers = dict(scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get(b"x-api-key", b"").decode("latin-1")
        opened = self._sessions.get(key)
        if opened is None:
            raise Refused("the API key is none of an episode that is going on", 401, "invalid_api_key")
        return opened

    async def _call(self, protocol: ModuleType, opened: OpenSession, scope: Scope, receive: Receive, send: Send) -> None:
        session = opened.session
        body = await self._body(scope, receive)
        if body is None:
            return
        try:
            asked = protocol.read(_json(body), opened.serving, session.known)
            if asked.replaced_temperature:
                session.counts["replaced_temperatures"] += 1
            call = await _unless_gone(session.call(asked.request), receive)
            if call is None:
                return
            created = int(time.time())
            if asked.stream:
                if not await _stream(send, receive, protocol.events(asked, call, self._renderer, created)):
                    session.counts["broken_streams"] += 1
            else:
                await _reply(send, 200, protocol.answer(asked, call, self._renderer, created))
        except Refused:
            session.counts["refused_calls"] += 1
            raise
        except SamplingFailed:
            raise
        except Exception as error:  # A fault of this endpoint must never be scored as one of the policy.
            log.exception("the endpoint could not answer a call")
            session.failure = f"the endpoint could not answer a call: {error!r}"
            raise SamplingFailed(session.failure) from error

    async def _count(self, opened: OpenSession, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive)
        if body is not None:
            session = opened.session
            tokens = await session.prompt_tokens(anthropic_messages.read_count(_json(body), opened.serving, session.known))
            await _reply(send, 200, anthropic_messages.count(tokens))

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """None where the client is gone. Raises Refused where it is too large or too slow."""
        too_large = Refused(f"a request may have {self._max_body} bytes (environment.endpoint.max_request_mib)", 413, "too_large")
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_body:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(f"the request was not complete after {BODY_TIMEOUT_S:g} s", 400, "too_slow") from None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request is not JSON: {error}") from None


async def _unless_gone(work: Awaitable[Any], receive: Receive) -> Any:
    """The result of `work`; None, and `work` cancelled, where the client goes away first."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait({working, leaving})


async def _reply(send: Send, status: int, body: bytes) -> None:
    # Clients that try failed requests again are told that it is of no use: refusals stay, and failures end the episode.
    headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    headers += [(b"x-should-retry", b"false")] if status >= 400 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, receive: Receive, events: Any) -> bool:
    """Whether the client was still there at the end."""
    leaving = asyncio.ensure_future(receive())
    try:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENTS), (b"cache-control", b"no-cache")]})
        for event in events:
            if leaving.done():
                return False
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})
        return True
    finally:
        leaving.cancel()
        await asyncio.wait({leaving})

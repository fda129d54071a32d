"""The viewer's HTTP server: the API, the pages' files, and a stream that says when a run grew.

Invariants: nothing is answered without the token; no page may load or run anything but the files in `static`; transcripts leave here as JSON alone.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from rl_system.errors import UserError
from rl_system.strict_json import to_json
from rl_system.viewer.api import Api, NotFound

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
PAGE = re.compile(r"/(r/[^/?#\\]+(/episodes(/[ge]\d+\.\d+)?|/groups/\d+(/tree)?|/steps/\d+/tree)?)?(\?[^#\s\\]*)?")
"""Addresses of pages."""
STREAM_S = 1.5
"""The stream looks at the runs so often."""
MOST_BODY = 10_000


def make_app(api: Api, token: str, port: int, stopping: Callable[[], bool] = lambda: False) -> ASGIApp:
    """token: what a browser or program must show. port: keeps the cookies of viewers on one machine apart. stopping:
    the stream ends once it says so.
    """
    views = Views()

    def answer(ask: Callable[..., Any]) -> Callable[[Request], Any]:
        """A route that answers with JSON; what it asks reads files, and runs in a thread."""

        async def route(request: Request) -> Response:
            try:
                value = await run_in_threadpool(lambda: to_json(ask(dict(request.query_params), **request.path_params)))
            except NotFound as error:
                return _json(to_json({"error": str(error)}), 404)
            except UserError as error:
                return _json(to_json({"error": str(error)}), 400)
            return _json(value)

        return route

    async def stream(request: Request) -> Response:
        return StreamingResponse(_changes(api, views, stopping), media_type="text/event-stream")

    async def view(request: Request) -> Response:
        try:
            if int(request.headers.get("content-length", "0")) > MOST_BODY:
                raise ValueError
            url = (await request.json())["url"]
        except (ValueError, KeyError, TypeError, RecursionError):
            url = None
        if not isinstance(url, str) or not PAGE.fullmatch(url):
            return _json(to_json({"error": 'give {"url": "/r/RUN/…"}, the address of a page without its host'}), 400)
        return _json(to_json({"pages": views.show(url)}))

    async def page(request: Request) -> Response:
        return Response(await run_in_threadpool((STATIC / "index.html").read_bytes), media_type="text/html")

    def only(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
        """Checks that a query has no other names."""

        def ask(given: Mapping[str, str], **path: Any) -> Any:
            if unknown := [name for name in given if name not in names]:
                raise UserError(f"{unknown[0]} is no parameter here; there are {', '.join(names) or 'none'}")
            return function(*path.values(), **given)

        return ask

    run = "/api/runs/{name}"
    routes = [
        Route("/api/runs", answer(only(api.runs))),
        Route(run, answer(only(api.run))),
        Route(f"{run}/metrics", answer(only(api.metrics, "names", "since_step"))),
        Route(f"{run}/events", answer(only(api.events, "kind", "since"))),
        Route(f"{run}/episodes", answer(lambda given, name: api.episodes(name, given))),
        Route(f"{run}/histogram", answer(lambda given, name: api.histogram(name, given))),
        Route(f"{run}/steps", answer(only(api.steps))),
        Route(f"{run}/groups/{{group:int}}", answer(only(api.group))),
        Route(f"{run}/groups/{{group:int}}/diff", answer(_diff(api))),
        Route(f"{run}/groups/{{group:int}}/tree", answer(only(_tree(api, "groups"), "root", "budget"))),
        Route(f"{run}/steps/{{step:int}}/tree", answer(only(_tree(api, "steps"), "root", "budget"))),
        Route(f"{run}/episodes/{{key}}", answer(only(api.episode))),
        Route("/api/stream", stream),
        Route("/view", view, methods=["POST"]),
        Route("/", page),
        Route("/r/{rest:path}", page),
    ]
    app = Starlette(routes=routes)
    app.mount("/static", StaticFiles(directory=STATIC))
    return Guard(app, token, f"rl_view_{port}")


def _diff(api: Api) -> Callable[..., Any]:
    def ask(given: Mapping[str, str], name: str, group: int) -> Any:
        return api.diff(name, group, given.get("a", "0"), given.get("b", "1"))

    return ask


def _tree(api: Api, what: str) -> Callable[..., Any]:
    return lambda name, number, **given: api.tree(name, what, number, **given)


class Guard:
    """Lets only those in who have the token: in the address once, from then on in a cookie; programs as a bearer."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        if self._is(request.query_params.get("token")) and request.method == "GET":
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            # One slash: two would name another host.
            path = "/" + request.url.path.lstrip("/\\")
            response = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, headers=HEADERS)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            await response(scope, receive, send)
            return
        bearer = request.headers.get("authorization", "")
        if not (self._is(request.cookies.get(self._cookie)) or self._is(bearer.removeprefix("Bearer "))):
            refusal = PlainTextResponse(
                "open the address that the command printed: it carries the token\n", 401, HEADERS
            )
            await refusal(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), text.encode()) for name, text in HEADERS.items()),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _is(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self._token.encode())


class Views:
    """Pages that are open, and where somebody wants them to go."""

    def __init__(self) -> None:
        self._open: set[asyncio.Queue[str]] = set()

    def show(self, url: str) -> int:
        """How many pages were told."""
        for queue in self._open:
            queue.put_nowait(url)
        return len(self._open)

    def open(self) -> asyncio.Queue[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._open.add(queue)
        return queue

    def close(self, queue: asyncio.Queue[str]) -> None:
        self._open.discard(queue)


async def _changes(api: Api, views: Views, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Server-sent events: `grew` with the runs that did, `view` with an address."""
    queue, before = views.open(), None
    try:
        yield ": here\n\n"
        while not stopping():
            now = await run_in_threadpool(api.revisions)
            grew = [] if before is None else [name for name, revision in now.items() if before.get(name) != revision]
            before = now
            # Also without news something is sent: a page that is gone is noticed by it.
            yield f"event: grew\ndata: {to_json(grew)}\n\n" if grew else ": nothing new\n\n"
            try:
                url = await asyncio.wait_for(queue.get(), STREAM_S)
            except TimeoutError:
                continue
            yield f"event: view\ndata: {to_json(url)}\n\n"
    finally:
        views.close(queue)


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")

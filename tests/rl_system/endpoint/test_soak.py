"""Hundreds of sessions at once, for minutes, whose clients go away, raise and talk nonsense: nothing leaks, nothing is lost.

`SOAK_SECONDS` says for how long (60), `SOAK_SESSIONS` how many at once (256).
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pytest

from launch.bench.support.dialogue import Connection
from tests.rl_system.endpoint import soaking

SECONDS, SESSIONS = float(os.environ.get("SOAK_SECONDS", "60")), int(os.environ.get("SOAK_SESSIONS", "256"))
SERVERS = 2
CHAT, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
GROWTH_MIB = 24
"""What a process may have more at the end than once it was warm."""


class Server:
    """This side of a server process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=soaking.work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._lock = threading.Lock()
        self.address: str = self._received(self._pipe)

    async def ask(self, *request: Any) -> Any:
        return await asyncio.to_thread(self._ask, request)

    def _ask(self, request: tuple) -> Any:
        with self._lock:
            self._pipe.send(request)
            return self._received(self._pipe)

    @staticmethod
    def _received(pipe: Pipe) -> Any:
        assert pipe.poll(120), "the server does not answer"
        return pipe.recv()

    def end(self) -> None:
        self._pipe.close()
        self.process.join(30)
        assert self.process.exitcode == 0


class Client:
    """One agent at a time, each in a session of its own, one after another."""

    def __init__(self, server: Server, counts: Counter[str]) -> None:
        self.server, self.counts = server, counts

    async def play(self) -> None:
        key = await self.server.ask("open")
        answered: set[str] = set()
        behaviour = random.choice([self.talks, self.talks, self.goes_away, self.leaves_streams, self.talks_nonsense, self.raises])
        waiting = await behaviour(key, answered)
        closed = await self.server.ask("close", key)
        for task in waiting or ():
            task.cancel()
            await asyncio.wait({task})
        record = closed.record
        assert record.failure is None, record.failure
        assert answered <= set(record.completions), "an answer that a client was given is not in the episode"
        turns = sorted((turn.prompt_ids.tobytes(), turn.response_ids.tobytes()) for turn in record.turns)
        assert turns == sorted(closed.given) and closed.under_way == 0
        await self.expect_refusal(key)
        self.counts.update({behaviour.__name__: 1, "calls": len(answered), "turns": len(turns), "cancelled": closed.cancelled})

    async def expect_refusal(self, key: str) -> None:
        connection = await self.connected(key)
        with pytest.raises(RuntimeError, match="401"):
            await connection.post(CHAT, {})
        connection.close()

    async def connected(self, key: str) -> Connection:
        connection = Connection(self.server.address, key)
        await connection.open()
        return connection

    async def talks(self, key: str, answered: set[str], turns: int | None = None) -> None:
        connection = await self.connected(key)
        messages = [{"role": "user", "content": f"Hello {random.random()}."}]
        for _ in range(turns or random.randint(1, 6)):
            answer = await connection.post(CHAT, {"model": "policy", "messages": messages, "tools": TOOLS})
            answered.add(answer["id"].removeprefix("chatcmpl-"))
            message = answer["choices"][0]["message"]
            calls = message.get("tool_calls") or ()
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls]
            messages += [message, *(results or [{"role": "user", "content": "And?"}])]
        connection.close()

    async def goes_away(self, key: str, answered: set[str]) -> None:
        for _ in range(random.randint(1, 3)):
            connection = await self.connected(key)
            body = {"model": "policy", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello."}]}
            asking = asyncio.create_task(connection.post(ANTHROPIC, body))
            await asyncio.wait({asking}, timeout=random.uniform(0, soaking.LONGEST_S))
            connection.close()
            asking.cancel()
            await asyncio.wait({asking})
        await self.talks(key, answered, 1)

    async def leaves_streams(self, key: str, answered: set[str]) -> None:
        connection = await self.connected(key)
        body = {"model": "policy", "stream": True, "messages": [{"role": "user", "content": "Hello."}]}
        content = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {len(content)}\r\n\r\n"
        connection._writer.write(head.encode() + content)
        for _ in range(random.randint(1, 12)):
            await connection._reader.readline()
        connection.close()
        await self.talks(key, answered, 1)

    async def talks_nonsense(self, key: str, answered: set[str]) -> None:
        for body in ({"model": "other"}, {"model": "policy", "messages": [1]}, {"model": "policy", "messages": [], "top_p": 0.1}):
            connection = await self.connected(key)
            with pytest.raises(RuntimeError, match=r" 40\d "):
                await connection.post(CHAT, body)
            connection._writer.write(b"nonsense\r\n\r\n" if random.random() < 0.5 else b"POST /v1 HTTP/1.1\r\ncontent-length: 99\r\n\r\n{")
            connection.close()
        await self.talks(key, answered, 1)

    async def raises(self, key: str, answered: set[str]) -> list[asyncio.Task]:
        """Ends while calls of its own are under way, which it leaves to themselves."""
        await self.talks(key, answered, 1)
        left = [asyncio.create_task(self.talks(key, set(), 3)) for _ in range(3)]
        await asyncio.sleep(random.uniform(0, soaking.LONGEST_S))
        return left


async def soak(servers: list[Server]) -> tuple[Counter[str], list[list[soaking.Held]]]:
    counts: Counter[str] = Counter()
    end = time.monotonic() + SECONDS
    held: list[list[soaking.Held]] = []

    async def look() -> None:
        held.append([await server.ask("held") for server in servers])

    async def agents(number: int) -> None:
        client = Client(servers[number % len(servers)], counts)
        while time.monotonic() < end:
            await client.play()

    async def looks() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(SECONDS / 20)
            await look()

    await look()
    async with asyncio.TaskGroup() as group:
        group.create_task(looks())
        for number in range(SESSIONS):
            group.create_task(agents(number))
    await asyncio.sleep(2)  # connections of clients that are gone are closed
    await look()
    return counts, held


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_many_sessions_with_clients_that_go_away_and_raise_leak_nothing_and_lose_nothing():
    servers = [Server() for _ in range(SERVERS)]
    counts, held = asyncio.run(soak(servers))
    print(dict(counts))
    for before, *during, after in zip(*held, strict=True):
        warm = during[len(during) // 3]
        print(before, warm, during[-1], after, sep="\n")
        assert (after.sessions, after.children) == (0, 0)
        assert after.tasks <= before.tasks and after.files <= before.files + 2
        assert after.threads <= before.threads + 32  # of the loop's own pool
        assert max(each.mib for each in [*during[len(during) // 3 :], after]) < warm.mib + GROWTH_MIB
    for server in servers:
        server.end()
    assert counts["turns"] > SESSIONS and counts["cancelled"] > 0

"""A server process for the soak: sessions whose engine answers after a random while, and what the process holds."""

from __future__ import annotations

import asyncio
import gc
import random
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil

from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.record import SessionRecord
from rl_system.endpoint.server import EndpointServer
from rl_system.records import Turn
from tests.rl_system.chat.dialogues import make_renderer
from tests.rl_system.endpoint.clients import bounds

LONGEST_S = 2.0
"""Of an answer."""
WORDS = [f"<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"a\": {n}}}}}\n</tool_call>" if n % 3 == 0 else f"word {n} " * (n % 7 + 1) for n in range(64)]  # fmt: skip


@dataclass
class SlowEngine:
    """Of one session. given: what it answered, token for token; cancelled: requests that were taken out."""

    answers: list[np.ndarray]
    given: list[tuple[bytes, bytes]] = field(default_factory=list)
    under_way: int = 0
    cancelled: int = 0

    async def __call__(self, prompt_ids: np.ndarray, max_new_tokens: int, **_: Any) -> Turn:
        self.under_way += 1
        try:
            await asyncio.sleep(random.uniform(0, LONGEST_S))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1
        ids = random.choice(self.answers)[:max_new_tokens]
        self.given.append((prompt_ids.tobytes(), ids.tobytes()))
        return Turn(prompt_ids, ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")


@dataclass(frozen=True)
class Held:
    """What the process has: sessions, asyncio tasks, file descriptors, threads, children, MiB."""

    sessions: int
    tasks: int
    files: int
    threads: int
    children: int
    mib: float


@dataclass(frozen=True)
class Closed:
    """A session that is over. given, cancelled, under_way: of its engine."""

    record: SessionRecord
    given: list[tuple[bytes, bytes]]
    cancelled: int
    under_way: int


def work(pipe: Connection) -> None:
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    renderer = make_renderer()
    answers = [np.append(renderer.tokenize(text), np.int32(renderer.end_id)).astype(np.int32) for text in WORDS]
    server, engines = EndpointServer(renderer), {}
    await server.start()
    pipe.send(server.base_url)
    while True:
        try:
            command, *rest = await asyncio.to_thread(pipe.recv)
        except EOFError:
            return await server.stop()
        match command:
            case "open":
                engine = SlowEngine(answers)
                limits = bounds(max_turns=1000, max_episode_tokens=10**6, max_model_len=10**5, max_new_tokens=1000)
                key = server.open_session(str(len(engines)), engine, limits, Serving())
                engines[key] = engine
                pipe.send(key)
            case "close":
                record, engine = await server.close_session(rest[0]), engines.pop(rest[0])
                pipe.send(Closed(record, engine.given, engine.cancelled, engine.under_way))
            case "held":
                pipe.send(_held(server))


def _held(server: EndpointServer) -> Held:
    gc.collect()
    process = psutil.Process()
    return Held(
        sessions=server.sessions,
        tasks=len(asyncio.all_tasks()),
        files=process.num_fds(),
        threads=process.num_threads(),
        children=len(process.children()),
        mib=process.memory_info().rss / 2**20,
    )

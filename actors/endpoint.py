"""The endpoint: an HTTP server for agents that call the model themselves, beside the environment pool.

`EndpointServers` is the pool's side: it owns the server processes, spreads episodes over them and replaces those that die.
`EndpointActor` is one such process, with an event loop and a renderer of its own; its turns are sampled through the pool, as
every other turn is.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.answers import Gone, NoAnswer, answer_to
from envs.agents import Endpoint
from rl_system.chat.agent import GenerationFailed, Limits
from rl_system.config.run import RunConfig
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.record import SessionRecord
from rl_system.endpoint.server import EndpointServer
from rl_system.origin import said
from rl_system.records import Turn
from rl_system.training.loading import load_renderer

MIB = 1 << 20
RESTART_TIMEOUT_S, RESTART_POLL_S = 120.0, 0.5
"""Longest that an episode waits for a server that died to be there again."""

Key = tuple[int, int]
"""An episode under way, as the pool knows it."""


@ray.remote(num_cpus=0, max_restarts=-1)
class EndpointActor:
    """A process that dies is started anew by Ray; the sessions that it had are lost, and it listens elsewhere."""

    def __init__(self, config: RunConfig, model_directory: Path, pool: ActorHandle) -> None:
        self._config, self._pool = config, pool
        model = config.model.model_copy(update={"path": str(model_directory)})
        renderer = load_renderer(model)
        settings = config.environment.endpoint
        self._server = EndpointServer(renderer, host=settings.host, max_body=int(settings.max_request_mib * MIB))
        self._starting: asyncio.Task[None] | None = None
        self._limits = Limits.of(config.environment, config.rollout, config.model.max_model_len)
        self._serving = Serving(
            settings.model, config.rollout.sampling.temperature, settings.other_temperature
        )

    async def open_session(self, key: Key, temperature: float | None) -> Endpoint:
        """temperature: of its turns; that of the configuration where None."""
        self._starting = self._starting or asyncio.create_task(self._start())
        await self._starting
        secret = self._server.open_session(
            f"{key[0]}-{key[1]}", _PoolSample(self._pool, key, temperature), self._limits, self._serving,
            ordered=self._config.deterministic,
        )  # fmt: skip
        return Endpoint(f"{self._server.base_url}/v1", secret, self._serving.model)

    async def _start(self) -> None:
        await self._server.start()
        gc.collect()
        gc.freeze()  # the libraries' objects, which are many and stay: calls do not wait for them to be looked through

    async def close_session(self, secret: str) -> SessionRecord:
        """KeyError where there is no such session."""
        return await self._server.close_session(secret)

    async def stop(self) -> None:
        if self._starting is not None:
            await self._server.stop()


@dataclass(frozen=True, slots=True)
class _PoolSample:
    """How a session's turns are sampled. Cancelling it takes the request out of the engine."""

    pool: ActorHandle
    key: Key
    temperature: float | None

    async def __call__(
        self, prompt_ids: np.ndarray, max_new_tokens: int, *, repeat: int, seed: int | None, stop: tuple[str, ...]
    ) -> Turn:
        request = self.pool.generate_turn.remote(self.key, prompt_ids, max_new_tokens, self.temperature, repeat, seed)
        try:
            return await answer_to(request)
        except asyncio.CancelledError:
            ray.cancel(request)
            raise
        except (Gone, NoAnswer) as error:
            raise GenerationFailed(f"the environment pool did not answer: {error}") from error
        except RayTaskError as error:  # The sampler is a remote engine: whatever it raises costs this episode alone.
            cause = error.cause
            words = str(cause) if isinstance(cause, GenerationFailed) else said(cause)
            raise GenerationFailed(words) from error


@dataclass
class EndpointServers:
    """The servers that a pool started. config, model_directory, pool: what they are made of."""

    config: RunConfig
    model_directory: Path
    pool: ActorHandle
    actors: list[ActorHandle] = field(default_factory=list)
    _sessions: Counter[int] = field(default_factory=Counter)

    async def start(self) -> None:
        """On the pool's own node, where the agents are."""
        node = ray.get_runtime_context().get_node_id()
        options = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        for _ in range(self.config.environment.endpoint.processes):
            actor = EndpointActor.options(**options).remote(self.config, self.model_directory, self.pool)
            self.actors.append(actor)
        await asyncio.gather(*(actor.__ray_ready__.remote() for actor in self.actors))

    def door(self, key: Key, temperature: float | None) -> EndpointDoor:
        """The way of one episode into the server with the fewest."""
        index = min(range(len(self.actors)), key=lambda each: (self._sessions[each], each))
        return EndpointDoor(self, index, key, temperature)

    async def stop(self) -> None:
        stops = await asyncio.gather(*(answer_to(actor.stop.remote()) for actor in self.actors), return_exceptions=True)
        for actor in self.actors:
            ray.kill(actor)
        self.actors.clear()
        for error in stops:
            if isinstance(error, BaseException) and not isinstance(error, Gone | NoAnswer):
                raise error


@dataclass
class EndpointDoor:
    """See `rl_system.endpoint.agent_episode.Door`."""

    servers: EndpointServers
    index: int
    key: Key
    temperature: float | None
    _secret: str | None = None

    async def open(self) -> Endpoint:
        self.servers._sessions[self.index] += 1
        try:
            endpoint = await self._open()
        except BaseException:
            self.servers._sessions[self.index] -= 1
            raise
        self._secret = endpoint.api_key
        return endpoint

    async def close(self) -> SessionRecord:
        self.servers._sessions[self.index] -= 1
        return await self._ask("close_session", self._secret)

    async def _open(self) -> Endpoint:
        deadline = time.monotonic() + RESTART_TIMEOUT_S
        while True:  # a server that died takes a moment to be there again
            asking = asyncio.create_task(self._ask("open_session", self.key, self.temperature))
            try:
                return await asyncio.shield(asking)
            except asyncio.CancelledError:  # The server opens it all the same, and nobody else knows its key.
                with contextlib.suppress(GenerationFailed):
                    await self._ask("close_session", (await asking).api_key)
                raise
            except GenerationFailed:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RESTART_POLL_S)

    async def _ask(self, what: str, *arguments: Any) -> Any:
        actor = self.servers.actors[self.index]
        try:
            return await answer_to(getattr(actor, what).remote(*arguments))
        except (Gone, NoAnswer, KeyError) as error:
            raise GenerationFailed(f"the endpoint's server died, and what was called there is lost ({what}: {error})") from error

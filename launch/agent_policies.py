"""Who answers an agent's calls in an evaluation: what it knows to be right, nobody, or a model in an engine of this process.

Agents call the same endpoint as in training. It listens in this process, and each episode has a key of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from actors.engine.errors import EngineBroken, PromptTooLong, RequestFailed
from envs.agents import AgentResult, Endpoint
from envs.host import EnvironmentHost
from envs.protocol import Action
from envs.registry import has_gold, is_agent
from launch.evaluation_config import SCRIPTED
from launch.policies import Generate, Play, environment_policy, sampling
from rl_system.chat.agent import GenerationFailed, Limits
from rl_system.chat.demonstration import written_turn
from rl_system.chat.renderer import Renderer
from rl_system.config.run import RunConfig
from rl_system.endpoint.agent_episode import Door, play_agent
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.record import SessionRecord
from rl_system.endpoint.server import EndpointServer
from rl_system.endpoint.sessions import Sample
from rl_system.errors import UserError
from rl_system.origin import said
from rl_system.records import Episode, Task, Turn
from rl_system.seeds import EVALUATION_GROUP, turn_seed

MIB = 1 << 20


def policy(config: RunConfig, name: str) -> AbstractAsyncContextManager[Play]:
    """Of agents and environments alike. name: `gold`, `noop`, or anything else for the model of `config`."""
    if not is_agent(config.environment):
        return environment_policy(config, name)
    return scripted_agent(config, name) if name in SCRIPTED else model_agent(config)


def check_agent(options: argparse.Namespace, config: RunConfig) -> None:
    """Raises UserError where the options ask an agent for what it has not, or name one that is none."""
    name = config.environment.name
    if not is_agent(config.environment):
        if options.agent is not None:
            raise UserError(
                f"--agent is {options.agent!r}, which is an environment: it has no loop of its own, and is stepped; give it as "
                f"--environment.name {name}"
            )
        return
    for option in ("domain", "user"):
        if (value := getattr(options, option)) is not None:
            raise UserError(f"--{option} is {value!r}, but {name!r} is an agent, which is told its task alone; leave it out")
    if options.policy == "gold" and not has_gold(config.environment):
        raise UserError(
            f"--policy is gold, but the agent {name!r} has no function gold(task), which gives what a perfect model would answer, "
            "call by call; write one, or evaluate a model"
        )


@asynccontextmanager
async def model_agent(config: RunConfig) -> AsyncIterator[Play]:
    limits, trials = _limits(config), config.evaluation.episodes_per_task
    async with endpoint(config) as (server, _), sampling(config) as generate:

        async def play(task: Task, number: int, trial: int, host: EnvironmentHost) -> Episode:
            # As a run numbers the episodes of its evaluations, so that a deterministic one samples the same here.
            key = (EVALUATION_GROUP, number * trials + trial)
            door = model_door(server, config, key, generate)
            return await play_agent(task, number, trial, partial(host.run_agent, task), door, limits)

        yield play


@asynccontextmanager
async def scripted_agent(config: RunConfig, name: str) -> AsyncIterator[Play]:
    limits = _limits(config)
    async with endpoint(config) as (server, renderer):

        async def play(task: Task, number: int, trial: int, host: EnvironmentHost) -> Episode:
            script = _ScriptSample(renderer)

            async def run(at: Endpoint, timeout_s: float) -> AgentResult:
                if name == "gold":
                    script.actions = await host.gold(task)
                    script.empty = not script.actions
                return await host.run_agent(task, at, timeout_s)

            episode = await play_agent(task, number, trial, run, _Door(server, config, (number, trial), script), limits)
            episode.counts["empty_script"] = int(script.empty)
            return episode

        yield play


def model_door(server: EndpointServer, config: RunConfig, key: tuple[int, int], generate: Generate) -> Door:
    """The way of the episode `key`, group and index, into `server`, where `generate` answers."""
    return _Door(server, config, key, _ModelSample(config, key, generate))


def _limits(config: RunConfig) -> Limits:
    return Limits.of(config.environment, config.rollout, config.model.max_model_len)


@asynccontextmanager
async def endpoint(config: RunConfig) -> AsyncIterator[tuple[EndpointServer, Renderer]]:
    """A server of this process, and what it renders with. Raises UserError where `model.path` names no model."""
    from rl_system.training.loading import load_renderer  # heavy, and environments' policies can do without

    settings, renderer = config.environment.endpoint, load_renderer(config.model)
    server = EndpointServer(renderer, host=settings.host, max_body=int(settings.max_request_mib * MIB))
    await server.start()
    try:
        yield server, renderer
    finally:
        await server.stop()


@dataclass
class _Door:
    """See `rl_system.endpoint.agent_episode.Door`."""

    server: EndpointServer
    config: RunConfig
    key: tuple[int, int]
    sample: Sample
    _secret: str | None = None

    async def open(self) -> Endpoint:
        settings = self.config.environment.endpoint
        serving = Serving(settings.model, self.config.rollout.sampling.temperature, settings.other_temperature)
        self._secret = self.server.open_session(
            f"{self.key[0]}-{self.key[1]}", self.sample, _limits(self.config), serving, ordered=self.config.deterministic
        )
        return Endpoint(f"{self.server.base_url}/v1", self._secret, serving.model)

    async def close(self) -> SessionRecord:
        return await self.server.close_session(self._secret)


@dataclass
class _ModelSample:
    """The engine of this process. A turn has a seed where a run would give it one."""

    config: RunConfig
    key: tuple[int, int]
    generate: Generate

    async def __call__(
        self, prompt_ids: np.ndarray, max_new_tokens: int, *, repeat: int, seed: int | None, stop: tuple[str, ...]
    ) -> Turn:
        if self.config.deterministic or seed is not None:
            seed = turn_seed(self.config.seed, *self.key, prompt_ids, repeat, seed)
        try:
            return await self.generate(prompt_ids, max_new_tokens, seed)
        except (PromptTooLong, RequestFailed, EngineBroken) as error:
            raise GenerationFailed(said(error)) from error


@dataclass
class _ScriptSample:
    """A model that says what is written for it, call by call, and nothing any more at the end."""

    renderer: Renderer
    actions: list[Action] = field(default_factory=list)
    empty: bool = False
    """Whether something was to be written, and nothing is known."""

    async def __call__(
        self, prompt_ids: np.ndarray, max_new_tokens: int, *, repeat: int, seed: int | None, stop: tuple[str, ...]
    ) -> Turn:
        action = self.actions.pop(0) if self.actions else Action()
        return written_turn(self.renderer, action, prompt_ids, max_new_tokens)

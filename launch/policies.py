"""Who plays in an evaluation: the known solutions, nobody, or a model in an engine of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import numpy as np

from envs.host import EnvironmentHost
from launch.evaluation_config import SCRIPTED
from rl_system.allocation.handover import OVERDUE
from rl_system.chat.agent import Limits, run_episode
from rl_system.chat.scripted import doing_nothing, gold, play_script
from rl_system.config.run import RunConfig
from rl_system.machine.resources import Resources
from rl_system.records import Episode, Task, Turn

Play = Callable[[Task, int, int, EnvironmentHost], Awaitable[Episode]]
"""One episode: task, number of the task, trial, and where environments and agents live."""


class Generate(Protocol):
    def __call__(self, prompt_ids: np.ndarray, max_new_tokens: int, seed: int | None = None) -> Awaitable[Turn]: ...


def environment_policy(config: RunConfig, name: str) -> AbstractAsyncContextManager[Play]:
    """Of environments, which are stepped from here. name: `gold`, `noop`, or anything else for the model of `config`."""
    return scripted_policy(config, name) if name in SCRIPTED else model_policy(config)


@asynccontextmanager
async def scripted_policy(config: RunConfig, name: str) -> AsyncIterator[Play]:
    script = gold if name == "gold" else doing_nothing(config.environment)
    yield lambda task, number, trial, host: play_script(task, number, trial, host.environment(task), script)


@asynccontextmanager
async def model_policy(config: RunConfig) -> AsyncIterator[Play]:
    limits = Limits.of(config.environment, config.rollout, config.model.max_model_len)
    from rl_system.training.loading import load_renderer  # heavy, and the other policies can do without

    renderer = load_renderer(config.model)
    async with sampling(config) as generate:
        yield lambda task, number, trial, host: run_episode(
            task, number, trial, host.environment(task), generate, renderer, limits
        )


@asynccontextmanager
async def sampling(config: RunConfig) -> AsyncIterator[Generate]:
    """The model, the way a rollout worker would serve it, at the temperature of evaluations."""
    # Heavy imports that the other policies can do without.
    from actors.engine.environment import prepare_process
    from rl_system.machine.fit import check_fit
    from rl_system.machine.needs import NodeNeeds, RunNeeds
    from rl_system.training.parameter_files import count_parameters
    from rl_system.training.prepared import model_directory

    directory = model_directory(config.model.path)
    engine = NodeNeeds((RunNeeds(config, count_parameters(directory)).rollout(),))
    settings = f"--policy {config.model.path} in {config.model.dtype}"
    settings += f", rollout.engine.kv_cache_gib {config.rollout.engine.kv_cache_gib}"
    check_fit(engine, Resources.look(), "on this machine", settings)
    prepare_process(config)
    # vLLM reads its environment variables when it is imported: not before the line above.
    from actors.engine.session import EngineSession

    session = await asyncio.to_thread(EngineSession, directory, config, 0, 0)
    try:
        await session.label()

        async def generate(prompt_ids: np.ndarray, max_new_tokens: int, seed: int | None = None) -> Turn:
            temperature = config.evaluation.temperature
            turn = await session.generate(prompt_ids, max_new_tokens, temperature, seed=seed)
            while turn.finish_reason == OVERDUE:  # there is no other engine: this one goes on
                turn = await session.generate(prompt_ids, max_new_tokens, temperature, turn, seed)
            return turn

        yield generate
    finally:
        await session.close()

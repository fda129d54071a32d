"""Who plays in an evaluation: the known solutions, nobody, or a model in an engine of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np

from envs.protocol import AsyncEnvironment
from launch.evaluation_config import SCRIPTED
from rl_system.allocation.handover import OVERDUE
from rl_system.chat.agent import Limits, run_episode
from rl_system.chat.scripted import doing_nothing, gold, play_script
from rl_system.config.run import RunConfig
from rl_system.records import Episode, Task, Turn

Play = Callable[[Task, int, int, AsyncEnvironment], Awaitable[Episode]]
"""One episode: task, number of the task, trial, and the environment to play it in."""


def policy(config: RunConfig, name: str) -> AbstractAsyncContextManager[Play]:
    """name: `gold`, `noop`, or anything else for the model of `config`."""
    return scripted_policy(config, name) if name in SCRIPTED else model_policy(config)


@asynccontextmanager
async def scripted_policy(config: RunConfig, name: str) -> AsyncIterator[Play]:
    script = gold if name == "gold" else doing_nothing(config.environment)
    yield lambda task, number, trial, environment: play_script(task, number, trial, environment, script)


@asynccontextmanager
async def model_policy(config: RunConfig) -> AsyncIterator[Play]:
    """The model, the way a rollout worker would serve it, at the temperature of evaluations."""
    # Heavy imports that the other policies can do without.
    from rl_system.training.loading import load_renderer
    from rl_system.training.prepared import model_directory

    directory = model_directory(config.model.path)
    renderer = load_renderer(config.model)
    limits = Limits.of(config.environment, config.rollout, config.model.max_model_len)

    from actors.engine.environment import prepare_process

    prepare_process(config)
    # vLLM reads its environment variables when it is imported: not before the line above.
    from actors.engine.session import EngineSession

    session = await asyncio.to_thread(EngineSession, directory, config, 0, 0)
    try:
        await session.label()

        async def generate(prompt_ids: np.ndarray, max_new_tokens: int) -> Turn:
            temperature = config.evaluation.temperature
            turn = await session.generate(prompt_ids, max_new_tokens, temperature)
            while turn.finish_reason == OVERDUE:  # there is no other engine: this one goes on
                turn = await session.generate(prompt_ids, max_new_tokens, temperature, turn)
            return turn

        yield lambda task, number, trial, environment: run_episode(
            task, number, trial, environment, generate, renderer, limits
        )
    finally:
        await session.close()

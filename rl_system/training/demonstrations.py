"""Training sequences of the tasks' own solutions, played through the loop and the renderer that rollouts use."""

from __future__ import annotations

import asyncio

from transformers import PreTrainedTokenizerBase

from envs.host import EnvironmentHost
from envs.registry import list_tasks
from rl_system.algorithms import sequences_of
from rl_system.chat.agent import Limits
from rl_system.chat.demonstration import demonstrate
from rl_system.chat.renderer import Renderer
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.records import Episode, Sequence, Task

SOLVED = 1.0
"""Reward of an episode that shows how a task is solved; whatever earned less is no example to follow."""


def demonstration_sequences(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> list[list[Sequence]]:
    """The sequences of every training task's demonstration, by task, in the order of the tasks.

    Tasks without a demonstration, or whose demonstration does not earn the full reward within the configured limits,
    are left out. Raises UserError where none remains.
    """
    tasks = list_tasks(config.environment, config.environment.split)
    model = config.model
    renderer = Renderer(tokenizer, tool_format=model.tool_format, chat_template=model.chat_template)
    episodes = asyncio.run(_play(config, tasks, renderer))
    solved = [sequences_of(episode) for episode in episodes if episode.reward >= SOLVED]
    if not solved:
        reached = ", ".join(sorted({str(episode.ended) for episode in episodes}))
        failed = next((f"; the first that failed: {each.failure.what}" for each in episodes if each.failure), "")
        raise UserError(
            f"warm_start.enabled: none of the {len(tasks)} tasks of {config.environment.label}, split "
            f"{config.environment.split!r}, has a demonstration that solves it (they ended by: {reached}{failed}); choose "
            "tasks with scripted solutions, wider limits (environment.max_turns, rollout.max_episode_tokens), or "
            "switch it off"
        )
    return solved


async def _play(config: RunConfig, tasks: list[Task], renderer: Renderer) -> list[Episode]:
    limits = Limits.of(config.environment, config.rollout, config.model.max_model_len)
    slots = asyncio.Semaphore(config.environment.concurrency)

    async def play(index: int, task: Task) -> Episode:
        async with slots:
            return await demonstrate(task, host.environment(task), renderer, limits, group_id=index)

    async with EnvironmentHost(config.environment) as host:
        return await asyncio.gather(*(play(index, task) for index, task in enumerate(tasks)))

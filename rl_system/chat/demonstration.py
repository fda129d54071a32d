"""Demonstrations: an environment's own solution of a task, as an episode that went through the agent's loop.

The loop, the renderer and the environment are those of a rollout; only the sampler is replaced by one that writes the
next action of the solution. So a demonstration has exactly the token ids that a policy would have to sample.
"""

from __future__ import annotations

import numpy as np

from envs.protocol import Action, AsyncEnvironment, EnvironmentFailed
from rl_system.chat.agent import Limits, run_episode
from rl_system.chat.renderer import Renderer
from rl_system.records import NO_VERSION, Episode, Task, Turn


async def demonstrate(
    task: Task, environment: AsyncEnvironment, renderer: Renderer, limits: Limits, *, group_id: int = 0, index: int = 0
) -> Episode:
    """The scripted episode. Its tokens carry logprob 0 and no policy version: no policy sampled them."""
    policy = _Script(environment, renderer)
    return await run_episode(task, group_id, index, environment, policy.generate, renderer, limits)


class _Script:
    def __init__(self, environment: AsyncEnvironment, renderer: Renderer) -> None:
        self._environment = environment
        self._renderer = renderer
        self._actions: list[Action] | None = None

    async def generate(self, prompt_ids: np.ndarray, max_new_tokens: int) -> Turn:
        if self._actions is None:
            self._actions = await self._environment.demonstration()
            if not self._actions:
                raise EnvironmentFailed("the demonstration is empty: no solution is known")
        if not self._actions:
            raise EnvironmentFailed("the demonstration is over, but the episode goes on: it has not ended it")
        return written_turn(self._renderer, self._actions.pop(0), prompt_ids, max_new_tokens)


def written_turn(renderer: Renderer, action: Action, prompt_ids: np.ndarray, max_new_tokens: int) -> Turn:
    """The turn of a model that does `action`, or of one that is cut off in the middle of it."""
    written = renderer.write(action)
    ids = written[:max_new_tokens]
    return Turn(
        prompt_ids=prompt_ids,
        response_ids=ids,
        logprobs=np.zeros(len(ids), np.float32),
        versions=np.full(len(ids), NO_VERSION, np.int32),
        finish_reason="stop" if len(ids) == len(written) else "length",
    )

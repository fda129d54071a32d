"""Episodes without a model: an agent that knows its actions beforehand. Bounds for an evaluation, and load for a
benchmark.

Such an agent needs no tokenizer, so its episodes have no turns; everything else is as in the agent loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable

from envs.protocol import Action, AsyncEnvironment, EnvironmentFailed, Message, Score, ToolCall
from rl_system.chat.agent import failure_of
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Episode, Task

Script = Callable[[AsyncEnvironment], Awaitable[list[Action]]]
"""The actions of an episode, asked for once the environment has been reset."""


async def gold(environment: AsyncEnvironment) -> list[Action]:
    """The environment's own solution."""
    return await environment.demonstration()


def doing_nothing(config: EnvironmentConfig) -> Script:
    """Ends the episode at once where the agent may (`done`, alone); else greets until the user leaves."""
    action = Action(tool_calls=(ToolCall("done", {}),)) if config.user.kind == "solo" else Action(text="Hello.")

    async def script(environment: AsyncEnvironment) -> list[Action]:
        return [action] * config.max_turns

    return script


async def play_script(task: Task, group_id: int, index: int, environment: AsyncEnvironment, script: Script) -> Episode:
    """Like `run_episode`: never raises for what the environment does, and closes it. An episode that outlasts its
    script ends as MAX_TURNS; its count `empty_script` tells where there was nothing to play."""
    transcript: list[Message] = []
    counts: Counter[str] = Counter()
    start, failure = time.perf_counter(), None
    try:
        observation, _ = await environment.reset()
        transcript += observation.messages
        actions = await script(environment)
        counts["empty_script"] = int(not actions)
        for action in actions:
            if observation.ended is not None:
                break
            calls = [call.as_message_part() for call in action.tool_calls]
            transcript.append({"role": "assistant", "content": action.text} | ({"tool_calls": calls} if calls else {}))
            observation = await environment.step(action)
            transcript += observation.messages
            counts.update(steps=1, tool_calls=len(calls), tool_errors=observation.errors)
        ended = observation.ended or Ending.MAX_TURNS
        score = await environment.score(ended)
    except EnvironmentFailed as error:
        failure = failure_of(error)
        transcript.append({"role": "system", "content": f"The environment failed: {error}"})
        ended, score = Ending.FAILED, Score(0.0)
    finally:
        await environment.close()
    return Episode(
        task=task,
        group_id=group_id,
        index=index,
        turns=[],
        transcript=transcript,
        reward=score.reward,
        reward_parts=score.parts,
        ended=ended,
        timings={"total": time.perf_counter() - start},
        counts=dict(counts + Counter(score.counts)),
        failure=failure,
    )

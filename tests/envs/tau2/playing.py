"""Playing τ²-bench environments without a model, and judging the same dialogue by upstream's evaluator."""

from __future__ import annotations

import random
from collections.abc import Iterable

from envs.protocol import Action, ToolCall
from envs.registry import make_environment
from envs.tau2.environment import Tau2Environment
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.records import Ending, Task

# After the environment, which keeps these imports quiet and away from the network.
from tau2.data_model.simulation import SimulationRun, TerminationReason  # isort: skip
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation  # isort: skip

GREETING = Action(text="Hello.")
DONE = Action(tool_calls=(ToolCall("done", {}),))


def config_for(domain: str, kind: str = "solo") -> EnvironmentConfig:
    return EnvironmentConfig(domain=domain, user=UserConfig(kind=kind))


def play(
    config: EnvironmentConfig, task: Task, actions: Iterable[Action] | None = None
) -> tuple[Tau2Environment, Ending]:
    """The environment after `actions` (default: its own demonstration), and how the episode ended."""
    environment = make_environment(config, task)
    environment.reset()
    observation = environment.observe()
    for action in environment.demonstration() if actions is None else actions:
        if observation.ended is not None:
            break
        environment.step(action)
        observation = environment.observe()
    return environment, observation.ended or Ending.MAX_TURNS


def nothing(config: EnvironmentConfig) -> list[Action]:
    """What an agent does that leaves the task alone: until the user gives up, or `done` at once."""
    return [DONE] if config.user.kind == "solo" else [GREETING] * 3


def variants(actions: list[Action], chance: random.Random) -> dict[str, list[Action]]:
    """Wrong and right ways to play a demonstration. The last action ends the episode."""
    *work, last = actions
    shuffled = chance.sample(work, len(work))
    return {
        "gold": actions,
        "truncated": [*work[: chance.randrange(len(work) + 1)], last],
        "reordered": [*shuffled, last],
        "repeated": [*work, *work[-1:], last],
        "corrupted": [*(_corrupt(action, chance) for action in work), last],
        "unfinished": work,
    }


def upstream_reward(environment: Tau2Environment, ended: Ending) -> float | None:
    """None where upstream's evaluator raises."""
    reasons = {Ending.AGENT_STOP: TerminationReason.AGENT_STOP, Ending.USER_STOP: TerminationReason.USER_STOP}
    run = SimulationRun(
        id="run",
        task_id=environment._task.id,
        start_time="",
        end_time="",
        duration=0.0,
        termination_reason=reasons.get(ended, TerminationReason.MAX_STEPS),
        messages=environment._trajectory,
    )
    try:
        return evaluate_simulation(
            run, environment._task, EvaluationType.ALL, environment.solo, environment._domain.name
        ).reward
    except Exception:
        return None


def _corrupt(action: Action, chance: random.Random) -> Action:
    """Change one argument of a call, sometimes its type, its name, or drop it."""
    if not action.tool_calls:
        return action
    call = action.tool_calls[0]
    arguments = dict(call.arguments)
    name = call.name
    if arguments and chance.random() < 0.8:
        key = chance.choice(sorted(arguments))
        arguments[key] = chance.choice(["wrong", 7, None, ["a"], {"b": 1}, True, "task_1", ""])
        if chance.random() < 0.2:
            del arguments[key]
    elif chance.random() < 0.5:
        name = "no_such_tool"
    return Action(tool_calls=(ToolCall(name, arguments),))

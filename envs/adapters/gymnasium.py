"""Gymnasium environments whose observations a model can read: text, numbers, or what they print of themselves.

    # examples/lake.py
    from envs.adapters.gymnasium import adapt
    list_tasks, make_environment = adapt(
        __name__, "FrozenLake-v1", is_slippery=False, actions=["left", "down", "right", "up"],
        instructions="Walk from S to G over frozen fields (F). Holes (H) end the walk.",
    )

A task is a seed of `reset`. Needs the extra `gymnasium`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.adapters.stepping import SEEDS, Outcome, SteppingEnvironment, WrongAction, seed_tasks
from envs.protocol import Environment
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Ending, Task

READABLE_NUMBERS = 1024
"""Larger observations need words of their own: an image is no text."""


def adapt(
    module: str,
    environment: str | Callable[..., Any],
    *,
    instructions: str = "Act in the environment with the tool, and gather as much reward as you can.",
    actions: Sequence[str] | None = None,
    describe: Callable[[Any], str] | None = None,
    seeds: Mapping[str, Sequence[int]] = SEEDS,
    **settings: Any,
) -> tuple[Callable[[EnvironmentConfig, str], list[Task]], Callable[[EnvironmentConfig, Task], Environment]]:
    """`(list_tasks, make_environment)` of the module named `module`.

    environment: an id that `gymnasium.make` knows, or what makes an environment. actions: names of the actions of a Discrete
    space. describe: from an observation to text; where it is not given, what an environment in render mode `ansi` prints, else
    the observation itself. seeds: by split. settings: for `gymnasium.make`, or for what makes the environment.
    """

    def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
        return seed_tasks(module, str(environment), seeds, split)

    def make_environment(config: EnvironmentConfig, task: Task) -> Environment:
        return GymnasiumEnvironment(_make(environment, settings), int(task.task_id), instructions, actions, describe)

    return list_tasks, make_environment


def _make(environment: str | Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    if callable(environment):
        return environment(**settings)
    import gymnasium

    modes = gymnasium.spec(environment).kwargs.get("render_modes") or _render_modes(environment)
    chosen = {"render_mode": "ansi"} if "ansi" in modes else {}
    return gymnasium.make(environment, **(chosen | dict(settings)))


def _render_modes(environment: str) -> Sequence[str]:
    """What the environment's class says of itself."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    entry = gymnasium.spec(environment).entry_point
    made = load_env_creator(entry) if isinstance(entry, str) else entry
    return getattr(made, "metadata", {}).get("render_modes", ())


class GymnasiumEnvironment(SteppingEnvironment):
    def __init__(
        self,
        world: Any,
        seed: int,
        instructions: str,
        actions: Sequence[str] | None,
        describe: Callable[[Any], str] | None,
    ) -> None:
        from gymnasium.spaces.utils import flatdim

        self._world, self._seed, self._describe = world, seed, describe
        seen = world.observation_space
        if describe is None and not _prints_itself(world) and seen.is_np_flattenable and flatdim(seen) > READABLE_NUMBERS:
            raise UserError(
                f"the environment's observations are {seen}: {flatdim(seen)} numbers, which no model reads; give `describe`, a "
                "function from an observation to text"
            )
        self._space = ActionSpace(world.action_space, actions)
        super().__init__(instructions, self._space.parameters())

    def begin(self) -> str:
        observation, _ = self._world.reset(seed=self._seed)
        return self._text(observation)

    def act(self, arguments: dict[str, Any]) -> Outcome:
        observation, reward, terminated, truncated, _ = self._world.step(self._space.action_of(arguments))
        ended = Ending.AGENT_STOP if terminated else Ending.MAX_TURNS if truncated else None
        return Outcome(self._text(observation), float(reward), ended)

    def close(self) -> None:
        self._world.close()

    def _text(self, observation: Any) -> str:
        if self._describe is not None:
            return self._describe(observation)
        if not isinstance(observation, str):
            observation = self._world.render() if _prints_itself(self._world) else _plain(observation)
        return plain_text(str(observation))


def plain_text(text: str) -> str:
    """Without a terminal's colours: what was highlighted stands in brackets, so that a model sees it too."""
    return re.sub(r"\x1b\[[1-9][0-9;]*m", "[", re.sub(r"\x1b\[0?m", "]", text))


def _prints_itself(world: Any) -> bool:
    return getattr(world, "render_mode", None) == "ansi"


class ActionSpace:
    """How a model writes an action of a Gymnasium space: names or numbers for Discrete, words for Text, a list of whole
    numbers for MultiDiscrete. UserError for other spaces."""

    def __init__(self, space: Any, names: Sequence[str] | None) -> None:
        from gymnasium import spaces

        self._space = space
        match space:
            case spaces.Discrete():
                values = range(int(space.start), int(space.start + space.n))
                if names is not None and len(names) != len(values):
                    raise UserError(f"actions names {len(names)} actions ({', '.join(names)}), and the environment has {len(values)}")
                self._choices = dict(zip(names or map(str, values), values, strict=True))
                self._schema = {"type": "string", "enum": list(self._choices)}
            case spaces.Text():
                self._choices, self._schema = None, {"type": "string", "maxLength": int(space.max_length)}
            case spaces.MultiDiscrete():
                self._choices = None
                numbers = {"type": "integer", "minimum": 0, "maximum": int(max(space.nvec)) - 1}
                self._schema = {"type": "array", "items": numbers, "minItems": len(space.nvec), "maxItems": len(space.nvec)}
            case _:
                raise UserError(
                    f"the environment's actions are {space}, which no tool call can name; the spaces Discrete, MultiDiscrete "
                    "and Text can be adapted, others by a wrapper of the environment (gymnasium.ActionWrapper)"
                )

    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"action": self._schema}, "required": ["action"]}

    def action_of(self, arguments: dict[str, Any]) -> Any:
        """Raises WrongAction, in words for the agent."""
        if "action" not in arguments:
            raise WrongAction("give the argument `action`")
        given = arguments["action"]
        if self._choices is not None:
            name = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
            if not isinstance(name, str) or name not in self._choices:
                raise WrongAction(f"{given!r} is no action; there are {', '.join(self._choices)}")
            return self._choices[name]
        action = given
        if isinstance(given, list):
            if not all(isinstance(each, int) and not isinstance(each, bool) for each in given):
                raise WrongAction(f"{given!r} is no action; give a list of whole numbers")
            import numpy as np

            action = np.asarray(given, np.int64)
        if not self._space.contains(action):
            raise WrongAction(f"{given!r} is no action of {self._space}")
        return action


def _plain(value: Any) -> Any:
    """An observation in Python's own terms, which read better than NumPy's."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    return value.tolist() if hasattr(value, "tolist") else value

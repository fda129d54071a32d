"""OpenEnv environments: a server that somebody runs (a container, a space, `uvicorn`), played over its own client.

    # examples/echo.py
    from envs.adapters.openenv import adapt
    list_tasks, make_environment = adapt(__name__, "http://127.0.0.1:8000", instructions="Say what you are told to say.")

The agent acts by one tool whose arguments are the fields of the environment's action, as the server's `/schema` describes
them. A task is a seed of `reset`; each episode has a session of its own at the server, which has to allow as many at once as
`environment.concurrency`. Needs the extra `openenv`.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.adapters.stepping import SEEDS, Outcome, SteppingEnvironment, WrongAction, seed_tasks
from envs.protocol import Environment
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Ending, Task

ANSWER_TIMEOUT_S = 10.0
OF_THE_PROTOCOL = ("metadata",)
"""Fields of every action that mean nothing to the environment."""


def adapt(
    module: str,
    base_url: str,
    *,
    instructions: str = "Act in the environment with the tool, and gather as much reward as you can.",
    describe: Callable[[dict[str, Any]], str] | None = None,
    seeds: Mapping[str, Sequence[int]] = SEEDS,
    parameters: dict[str, Any] | None = None,
) -> tuple[Callable[[EnvironmentConfig, str], list[Task]], Callable[[EnvironmentConfig, Task], Environment]]:
    """`(list_tasks, make_environment)` of the module named `module`.

    describe: from an observation to text; where it is not given, its only text field, or all of it as JSON. seeds: by split.
    parameters: JSON schema of the action, in place of what the server says.
    """

    def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
        return seed_tasks(module, "openenv", seeds, split)

    def make_environment(config: EnvironmentConfig, task: Task) -> Environment:
        schema = parameters if parameters is not None else action_schema(base_url)
        return OpenEnvironment(base_url, int(task.task_id), instructions, schema, describe)

    return list_tasks, make_environment


def action_schema(base_url: str) -> dict[str, Any]:
    """What the server says an action is. UserError where no server answers there."""
    try:
        with urllib.request.urlopen(f"{base_url.rstrip('/')}/schema", timeout=ANSWER_TIMEOUT_S) as answer:
            schema = json.load(answer)["action"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"no OpenEnv server answers at {base_url!r} ({error}); start it there, or give its present address"
        ) from None
    fields = {name: field for name, field in schema.get("properties", {}).items() if name not in OF_THE_PROTOCOL}
    return schema | {"properties": fields}


class OpenEnvironment(SteppingEnvironment):
    def __init__(
        self,
        base_url: str,
        seed: int,
        instructions: str,
        parameters: dict[str, Any],
        describe: Callable[[dict[str, Any]], str] | None,
    ) -> None:
        super().__init__(instructions, parameters)
        self._base_url, self._seed, self._describe = base_url, seed, describe or as_text
        self._client: Any = None

    def begin(self) -> str:
        from openenv.core import GenericEnvClient

        self._client = GenericEnvClient(base_url=self._base_url).sync()
        self._client.connect()
        return self._describe(self._client.reset(seed=self._seed).observation)

    def act(self, arguments: dict[str, Any]) -> Outcome:
        if missing := [name for name in self._parameters.get("required", ()) if name not in arguments]:
            raise WrongAction(f"give the argument `{missing[0]}`")
        try:
            result = self._client.step(arguments)
        except RuntimeError as refused:  # what the client raises for an answer of the server that is an error
            raise WrongAction(f"the environment refused the action ({refused})") from None
        ended = Ending.AGENT_STOP if result.done else None
        return Outcome(self._describe(result.observation), float(result.reward or 0.0), ended)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def as_text(observation: dict[str, Any]) -> str:
    """Its only text field as it is; else all of it as JSON."""
    texts = [value for value in observation.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else json.dumps(observation, ensure_ascii=False, default=str)

"""Environments of the verifiers library, as agents: their own rollout calls the model at the endpoint and scores itself.

    # examples/sums.py
    from envs.adapters.verifiers import adapt
    tasks, run = adapt("my-environment", num_train_examples=512)

Tasks are the rows of the environment's data set (`train`) and of its evaluation set (`test`). Multi-turn environments,
tools and judges work as they are, since the whole rollout is theirs. Needs the extra `verifiers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

from rl_system.errors import UserError

SPLITS = ("train", "test")


def adapt(
    environment: str | Callable[..., Any], **settings: Any
) -> tuple[Callable[[str], list[dict[str, Any]]], Callable[[dict[str, Any], Any], Coroutine[Any, Any, float]]]:
    """`(tasks, run)` of an agent module.

    environment: an id that `verifiers.load_environment` knows, or what makes an environment. settings: for either.
    """

    @functools.cache  # one a process: it holds a data set
    def load() -> Any:
        import verifiers

        return environment(**settings) if callable(environment) else verifiers.load_environment(environment, **settings)

    def tasks(split: str) -> list[dict[str, Any]]:
        if split not in SPLITS:
            raise UserError(f"environment.split is {split!r}; an environment of verifiers has {', '.join(SPLITS)}")
        rows = load().get_dataset() if split == "train" else load().get_eval_dataset()
        return [dict(row) | {"id": f"{split}-{number}"} for number, row in enumerate(rows)]

    async def run(task: dict[str, Any], model: Any) -> float:
        from openai import AsyncOpenAI
        from verifiers.clients import OpenAIChatCompletionsClient

        row = {name: value for name, value in task.items() if name != "id"}
        async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as connection:
            client = OpenAIChatCompletionsClient(connection)
            done = await load().run_rollout(row, client, model.name, {})
        if done.get("error"):
            raise RuntimeError(f"the rollout of verifiers failed: {done['error']}")
        return float(done["reward"])

    return tasks, run

"""How well a policy solves the tasks of a domain.

    python -m launch.evaluate --domain airline --split test --user scripted --policy gold
    python -m launch.evaluate --domain mock --split test --user solo --policy smollm2-135m-instruct --trials 4

`--policy` is `gold` (the known solutions: an upper bound, and a check of the set-up), `noop` (does nothing: a lower
bound), or a model: a directory in Hugging Face layout or the name of a prepared one, sampled by vLLM in this process.
Every key of the run configuration can be given as `--section.key value`. Transcripts are written to disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from envs.host import EnvironmentHost
from envs.protocol import AsyncEnvironment
from envs.registry import list_tasks
from launch.command import Parser, number, run_command, whole
from rl_system.allocation.handover import OVERDUE
from rl_system.chat.agent import Limits, run_episode
from rl_system.chat.renderer import Renderer
from rl_system.chat.scripted import doing_nothing, gold, play_script
from rl_system.config.load import build_config, read_yaml
from rl_system.config.run import RunConfig
from rl_system.records import Episode, Task, Turn
from rl_system.strict_json import to_json
from rl_system.tracking.episodes import write_episodes
from rl_system.tracking.evaluation import evaluation_metrics
from rl_system.user_model import check_user

Play = Callable[[Task, int, int, AsyncEnvironment], Awaitable[Episode]]
"""One episode: task, number of the task, trial, and the environment to play it in."""

LONG_PROMPTS = {"max_model_len": 16384}
"""What the domains with real policies need; mock's prompts are short."""


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="python -m launch.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--domain", default="mock")
    parser.add_argument("--split", default="test")
    parser.add_argument("--user", choices=("solo", "scripted", "llm"), default="solo")
    parser.add_argument("--policy", required=True, help="gold, noop, or a model")
    parser.add_argument("--config", type=Path, help="a file of configs/ to take everything else from")
    parser.add_argument("--trials", type=whole(at_least=1), default=1, help="episodes of each task; pass^k is reported up to this k")
    parser.add_argument("--max-tasks", type=whole(at_least=1), help="only the first tasks of the split")
    parser.add_argument("--temperature", type=number(at_least=0), default=0.0, help="of a model's sampling; 0 is greedy")
    parser.add_argument("--output", type=Path, default=Path("runs/evaluations"), help="where transcripts go")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line and nothing else on standard output"
    )
    return run_command(lambda: evaluate(*parser.parse_known_args(arguments)))


def evaluate(options: argparse.Namespace, overrides: list[str]) -> int:
    config = configuration(options, overrides)
    check_user(config.environment.user, config.model.device)
    tasks = list_tasks(config.environment, options.split)[: options.max_tasks]
    with results_stream(options.json) as out:
        report = (lambda episode: print(to_json(as_record(episode)), file=out, flush=True)) if options.json else None
        episodes = asyncio.run(play_all(config, options, tasks, report))
        path = options.output / config.name / "episodes.jsonl"
        write_episodes(path, episodes)
        if options.json:
            print(to_json(summary(episodes) | {"transcripts": path}), file=out, flush=True)
        else:
            print(table(episodes), f"transcripts: {path}", sep="\n", file=out)
    return 0


def configuration(options: argparse.Namespace, overrides: list[str]) -> RunConfig:
    """The run configuration that the evaluated policy would have been sampled under."""
    values: dict[str, Any] = (
        read_yaml(options.config) if options.config else {"environment": {"processes": processes()}}
    )
    now = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    policy = Path(options.policy).name if options.policy in ("gold", "noop") else "model"
    values["name"] = f"{options.domain}-{options.split}-{options.user}-{policy}-{now}"
    environment = values.setdefault("environment", {})
    environment |= {"domain": options.domain, "split": options.split}
    environment["user"] = environment.get("user", {}) | {"kind": options.user}
    model = values.setdefault("model", {})
    if not options.config and options.domain != "mock":
        model |= LONG_PROMPTS
        environment |= {"max_turns": 60}
        values["rollout"] = {"max_episode_tokens": 8192, "sampling": {"max_new_tokens": 1024}}
    if options.policy not in ("gold", "noop"):
        model["path"] = options.policy
    return build_config(values, overrides, source="launch.evaluate")


def processes() -> int:
    return min(os.cpu_count() or 1, 8)


async def play_all(
    config: RunConfig, options: argparse.Namespace, tasks: list[Task], report: Callable[[Episode], None] | None
) -> list[Episode]:
    """All trials of all tasks, task by task; `report` is called for each as soon as it is over."""
    from actors.engine.user_server import served_user

    slots = asyncio.Semaphore(config.environment.concurrency)

    async with (
        served_user(config) as environment,
        policy(config, options) as play,
        EnvironmentHost(environment) as host,
    ):

        async def one(number: int, trial: int) -> Episode:
            async with slots:
                episode = await play(tasks[number], number, trial, host.environment(tasks[number]))
            if report is not None:
                report(episode)
            return episode

        return await asyncio.gather(*(one(i, trial) for i in range(len(tasks)) for trial in range(options.trials)))


def policy(config: RunConfig, options: argparse.Namespace) -> AbstractAsyncContextManager[Play]:
    if options.policy in ("gold", "noop"):
        return scripted_policy(config, options.policy)
    return model_policy(config, options.temperature)


@asynccontextmanager
async def scripted_policy(config: RunConfig, name: str) -> AsyncIterator[Play]:
    script = gold if name == "gold" else doing_nothing(config.environment)
    yield lambda task, number, trial, environment: play_script(task, number, trial, environment, script)


@asynccontextmanager
async def model_policy(config: RunConfig, temperature: float) -> AsyncIterator[Play]:
    """The model in an engine of this process, the way a rollout worker would serve it."""
    # Heavy imports that the other policies can do without.
    from rl_system.training.loading import load_tokenizer
    from rl_system.training.prepared import model_directory

    directory = model_directory(config.model.path)
    renderer = Renderer(load_tokenizer(config.model), tool_format=config.model.tool_format)
    limits = Limits.of(config.environment, config.rollout, config.model.max_model_len)

    from actors.engine.environment import prepare_process

    prepare_process(config)
    # vLLM reads its environment variables when it is imported: not before the line above.
    from actors.engine.session import EngineSession

    session = await asyncio.to_thread(EngineSession, directory, config, 0, 0)
    try:
        await session.label()

        async def generate(prompt_ids: np.ndarray, max_new_tokens: int) -> Turn:
            turn = await session.generate(prompt_ids, max_new_tokens, temperature)
            while turn.finish_reason == OVERDUE:  # there is no other engine: this one goes on
                turn = await session.generate(prompt_ids, max_new_tokens, temperature, turn)
            return turn

        yield lambda task, number, trial, environment: run_episode(
            task, number, trial, environment, generate, renderer, limits
        )
    finally:
        await session.close()


def as_record(episode: Episode) -> dict[str, Any]:
    return {
        "task_id": episode.task.task_id,
        "trial": episode.index,
        "reward": episode.reward,
        "ended": episode.ended.value,
        "reward_parts": episode.reward_parts,
    }


def summary(episodes: list[Episode]) -> dict[str, Any]:
    """Success rate, pass^k, the mean of each reward part where it counts, endings, and what the user's model cost."""
    metrics = evaluation_metrics(episodes)
    parts = defaultdict(list)
    user: Counter[str] = Counter()
    for episode in episodes:
        for name, value in episode.reward_parts.items():
            parts[name].append(value)
        user.update({name: count for name, count in episode.counts.items() if name.startswith("user_")})
    return {
        "success_rate": metrics["eval/success_rate"],
        **{
            f"pass^{name.rpartition('/')[2]}": value for name, value in metrics.items() if name.startswith("eval/pass/")
        },
        "episodes": len(episodes),
        "reward_parts": {name: sum(values) / len(values) for name, values in sorted(parts.items())},
        "ended": dict(Counter(episode.ended.value for episode in episodes)),
        **user,
    }


def table(episodes: list[Episode]) -> str:
    totals = summary(episodes)
    lines = [f"{len({episode.task for episode in episodes})} tasks, {totals['episodes']} episodes"]
    lines += [
        f"  {name:<22}{totals[name]:8.3f}" for name in totals if name == "success_rate" or name.startswith("pass^")
    ]
    lines += [f"  part {name:<17}{value:8.3f}" for name, value in totals["reward_parts"].items()]
    lines += [f"  ended {name:<16}{count:8d}" for name, count in sorted(totals["ended"].items())]
    lines += [f"  {name:<22}{count:8d}" for name, count in totals.items() if name.startswith("user_")]
    return "\n".join(lines)


class results_stream:
    """Standard output for results. With `alone`, whatever else writes there (engines do) goes to standard error."""

    def __init__(self, alone: bool) -> None:
        self._alone = alone

    def __enter__(self) -> TextIO:
        if not self._alone:
            return sys.stdout
        sys.stdout.flush()
        self._saved = os.dup(1)
        os.dup2(2, 1)
        self._stream = os.fdopen(os.dup(self._saved), "w")
        return self._stream

    def __exit__(self, *_: object) -> None:
        if self._alone:
            self._stream.close()
            sys.stdout.flush()
            os.dup2(self._saved, 1)
            os.close(self._saved)


if __name__ == "__main__":
    sys.exit(main())

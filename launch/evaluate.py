"""How well a policy solves the tasks of an environment.

    python -m launch.evaluate --domain airline --split test --user scripted --policy gold
    python -m launch.evaluate --domain mock --split test --user solo --policy smollm2-135m-instruct --trials 4
    python -m launch.evaluate --config configs/my_run.yaml --policy runs/my_run/checkpoints/step_20/model
    python -m launch.evaluate --environment.name examples.guessing --list
    python -m launch.evaluate --agent my_agent.py --policy runs/my_run/checkpoints/step_20/model

`--policy` is `gold` (the known solutions: an upper bound, and a check of the set-up), `noop` (does nothing: a lower
bound), or a model: a directory in Hugging Face layout or the name of a prepared one, sampled by vLLM in this process.
What is played is what a run of the same configuration evaluates on; every key of it can be given as `--section.key
value`, and the options below stand for some. Transcripts and a summary are written to a directory of their own.

Exit codes: 0 where every episode was played, 3 where some failed (their environment or the engine broke: the results are
incomplete, standard error tells why), 2 for a mistake in what was asked for, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from envs.host import EnvironmentHost
from envs.registry import is_agent, list_tasks
from envs.trial import try_environment
from launch.agent_policies import check_agent, policy
from launch.command import Parser, number, place, run_command, whole
from launch.evaluation_config import SCRIPTED, checkpoint_of, evaluation_config, policy_label
from launch.results import results_stream
from rl_system.config.load import parse_overrides
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.output_place import require_writable
from rl_system.records import Ending, Episode, Task
from rl_system.strict_json import to_json
from rl_system.tracking.evaluation import evaluation_summary
from rl_system.tracking.evaluation_record import EvaluationRecord, make_directory
from rl_system.tracking.failure_book import FailureBook, told
from rl_system.user_model import check_user

FAILED = 3
"""Exit code where some of the episodes failed: what was measured is not what was asked for."""


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="python -m launch.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", help="gold, noop, or a model")
    parser.add_argument("--list", action="store_true", help="print the tasks that would be played, and play nothing")
    parser.add_argument("--config", type=place(), help="a file of configs/ to take everything else from")
    parser.add_argument("--agent", help="environment.name, of an agent that calls the model itself: its module, or that one's file")
    parser.add_argument("--domain", help="environment.domain; mock where nothing says otherwise")
    parser.add_argument("--split", help="evaluation.split; test where nothing says otherwise")
    parser.add_argument("--user", choices=("solo", "scripted", "llm"), help="environment.user.kind")
    parser.add_argument("--trials", type=whole(at_least=1), help="episodes of each task; pass^k is reported up to this k")
    parser.add_argument("--max-tasks", type=whole(at_least=1), help="only the first tasks of the split")
    parser.add_argument("--temperature", type=number(at_least=0), help="of a model's sampling; 0, the default, is greedy")
    parser.add_argument("--output", type=place(), help="where evaluations go; `evaluations` in the configuration's output")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line and nothing else on standard output"
    )
    return run_command(lambda: evaluate(*parser.parse_known_args(arguments)))


def evaluate(options: argparse.Namespace, overrides: list[str]) -> int:
    if options.policy is None and not options.list:
        raise UserError("--policy is missing; give gold, noop or a model, or --list to see the tasks")
    config = evaluation_config(options, overrides)
    check_agent(options, config)
    tasks = chosen_tasks(config)
    with results_stream() as out:
        if options.list:
            for task in tasks:
                print(to_json({"task_id": task.task_id}) if options.json else task.task_id, file=out)
            return 0
        output = (options.output if options.output else config.output / "evaluations").absolute()
        require_writable(output, "--output")
        check_user(config.environment.user, config.model.device)
        for warning in asyncio.run(tried(config, tasks)):
            print(f"warning: {warning}", file=sys.stderr)
        return play(config, options, tasks, output, parse_overrides(overrides).get("name"), out)


def chosen_tasks(config: RunConfig) -> list[Task]:
    split = config.environment.split
    tasks = list_tasks(config.environment, split)
    if not tasks:
        raise UserError(f"environment {config.environment.label} has no task in split {split!r}; choose another split")
    return tasks[: config.evaluation.max_tasks]


async def tried(config: RunConfig, tasks: list[Task]) -> list[str]:
    return [] if is_agent(config.environment) else await try_environment(config.environment, tasks)


def play(
    config: RunConfig, options: argparse.Namespace, tasks: list[Task], output: Path, name: str | None, out: TextIO
) -> int:
    """Play, write down and print. Returns the exit code."""
    split = config.environment.split
    directory = make_directory(
        output, name, policy_label(options.policy), environment_label(config, tasks), split, config.environment.user.kind
    )
    config = config.model_copy(update={"output": output, "name": directory.name})
    record = EvaluationRecord(directory, config, tasks, about(options, config))
    book = FailureBook(directory, len(tasks))
    verdict = None

    def over(episode: Episode) -> None:
        record.add(episode)
        if options.json:
            print(to_json(as_record(episode)), file=out, flush=True)
        for sighting in book.take_news():
            print(told(sighting), file=sys.stderr, flush=True)

    try:
        verdict = asyncio.run(play_all(config, options.policy, tasks, book, over))
    finally:
        record.close(complete=verdict is None and len(record.episodes) == len(tasks) * config.evaluation.episodes_per_task)
    totals = evaluation_summary(record.episodes)
    if options.json:
        files = {"transcripts": record.transcripts, "summary": record.summary_file}
        print(to_json(totals | files), file=out, flush=True)
    else:
        print(table(totals, tasks, split), f"in {record.directory}", sep="\n", file=out, flush=True)
    return judged(record.episodes, book, verdict, options.policy)


def about(options: argparse.Namespace, config: RunConfig) -> dict[str, Any]:
    """What a summary says of the policy: a model's path, and where it is one of a run's checkpoints, of which."""
    if options.policy in SCRIPTED:
        return {"policy": options.policy, "model": None, "checkpoint": None, "temperature": None}
    from rl_system.training.prepared import model_directory

    model = model_directory(config.model.path)
    checkpoint = checkpoint_of(options.policy)
    return {
        "policy": options.policy,
        "model": model.absolute(),
        "checkpoint": checkpoint and {"run": checkpoint[0], "step": int(checkpoint[1].removeprefix("step_"))},
        "temperature": config.evaluation.temperature,
    }


def environment_label(config: RunConfig, tasks: list[Task]) -> str:
    """Tells environments apart in a directory's name: the domain of tau2's, the name of others."""
    domains = "+".join(sorted({task.domain for task in tasks}))
    return domains if config.environment.domain == domains else config.environment.name


async def play_all(
    config: RunConfig, name: str, tasks: list[Task], book: FailureBook, over: Callable[[Episode], None]
) -> str | None:
    """All trials of all tasks, task by task; `over` is called with each as soon as it is over.

    Returns early, with the reason, where nearly all of them fail.
    """
    from actors.engine.user_server import served_user

    slots = asyncio.Semaphore(config.environment.concurrency)

    async with served_user(config) as environment, policy(config, name) as play, EnvironmentHost(environment) as host:

        async def one(number: int, trial: int) -> None:
            task = tasks[number]
            async with slots:
                with book.playing(task) as ended:
                    episode = await play(task, number, trial, host)
                    ended(episode)
            over(episode)

        trials = range(config.evaluation.episodes_per_task)
        playing = [asyncio.create_task(one(number, trial)) for number in range(len(tasks)) for trial in trials]
        waiting = set(playing)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
                if waiting and (verdict := book.verdict()) is not None:
                    return verdict
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
    return None


def judged(episodes: list[Episode], book: FailureBook, verdict: str | None, name: str) -> int:
    """The exit code, with what is wrong on standard error."""
    failed = [episode for episode in episodes if episode.ended is Ending.FAILED]
    raised = [episode for episode in episodes if episode.failure is not None and episode.ended is not Ending.FAILED]
    if verdict is not None:
        print(f"error: given up: {verdict}", file=sys.stderr)
        return FAILED
    if failed:
        first = failed[0]
        print(
            f"error: {len(failed)} of {len(episodes)} episodes failed and count as unsolved; the first, of task "
            f"{first.task.task_id}: {first.failure.what}. Tracebacks are in {book.log.path}",
            file=sys.stderr,
        )
        return FAILED
    if raised:
        print(
            f"warning: the agent raised in {len(raised)} of {len(episodes)} episodes, which are worth nothing; the first, of "
            f"task {raised[0].task.task_id}: {raised[0].failure.what}. Tracebacks are in {book.log.path}",
            file=sys.stderr,
        )
    empty = {episode.task for episode in episodes if episode.counts.get("empty_script")}
    if name == "gold" and empty:
        print(
            f"warning: {len(empty)} of {len({episode.task for episode in episodes})} tasks have no demonstration, and "
            "gold did nothing there",
            file=sys.stderr,
        )
    return 0


def as_record(episode: Episode) -> dict[str, Any]:
    record = {
        "task_id": episode.task.task_id,
        "trial": episode.index,
        "reward": episode.reward,
        "ended": episode.ended.value,
        "reward_parts": episode.reward_parts,
    }
    return record if episode.failure is None else record | {"failure": episode.failure.what}


def table(totals: dict[str, Any], tasks: list[Task], split: str) -> str:
    environment = ", ".join(sorted({" ".join(dict.fromkeys((task.environment, task.domain))) for task in tasks}))
    lines = [f"{len(tasks)} tasks of {environment}, split {split}; {totals['episodes']} episodes"]
    lines += [
        f"  {name:<22}{totals[name]:8.3f}" for name in totals if name == "success_rate" or name.startswith("pass^")
    ]
    lines += [f"  part {name:<17}{value:8.3f}" for name, value in totals["reward_parts"].items()]
    lines += [f"  ended {name:<16}{count:8d}" for name, count in sorted(totals["ended"].items())]
    lines += [f"  {name:<22}{count:8d}" for name, count in totals.items() if name.startswith("user_")]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

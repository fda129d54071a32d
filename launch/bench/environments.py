"""`python -m launch.bench environments`: how many episodes the environment pool's worker processes can carry.

Each concurrency is measured in fresh worker processes. First a few episodes alone, for the time of one reset, step and
score; then all episodes open at once, which shows what an environment holds in memory; then all of them played by their
known solutions, each step asked for as soon as the one before is answered, which is far harder than a language model
asks.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from itertools import cycle, islice

import psutil

from envs.host import EnvironmentHost
from envs.protocol import AsyncEnvironment
from envs.registry import list_tasks
from launch.bench.support.memory import resident_mib
from launch.bench.support.output import Output
from launch.command import Parser, whole, wholes
from rl_system.config.environment import EnvironmentConfig
from rl_system.config.load import check
from rl_system.machine.resources import usable_processors
from rl_system.records import Ending, Task

ALONE = 8
"""Episodes that are played one after another, without load."""
CPU_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Resolution of CPU times."""
SOLO_DOMAINS = ("mock", "telecom", "telecom-workflow")


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.bench environments", description=__doc__.split("\n")[0])
    parser.add_argument("--domain", default="mock")
    parser.add_argument("--split", default="test")
    parser.add_argument("--user", choices=("solo", "scripted"), help="default: solo where the domain has it")
    parser.add_argument("--concurrency", type=wholes(at_least=1), default=[64, 256], help="open episodes, separated by commas")
    parser.add_argument("--processes", type=whole(at_least=0), default=usable_processors(), help="worker processes")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line and nothing else on standard output"
    )
    options = parser.parse_args(arguments)
    output = Output(options.json)
    user = options.user or ("solo" if options.domain in SOLO_DOMAINS else "scripted")
    for concurrency in options.concurrency:
        values = {"domain": options.domain, "split": options.split, "user": {"kind": user}, "processes": options.processes}
        patience = {"start_timeout_s": 600.0, "step_timeout_s": 600.0}
        config = check(EnvironmentConfig, values | patience, "launch.bench environments")
        output({"domain": options.domain, "user": user} | asyncio.run(measure(config, concurrency)))
    return 0


@dataclass
class Clock:
    """Seconds that each kind of call took, as its caller saw it."""

    reset: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)


async def measure(config: EnvironmentConfig, concurrency: int) -> dict[str, float | int]:
    """One record: throughput under load, by wall clock and by CPU time of whole episodes, times alone (milliseconds),
    memory of the worker processes (MiB)."""
    tasks = list_tasks(config, config.split)
    async with EnvironmentHost(config) as host:
        # Imports, files, schemas and gold states are read or made once per process, by whichever episode comes first: a
        # run of some hours does not feel them.
        for task in tasks[:concurrency]:
            first = await asyncio.gather(*(opened(host, task, Clock()) for _ in range(max(config.processes, 1))))
            await asyncio.gather(*(finish(environment, Clock()) for environment in first))
        alone = Clock()
        for task in islice(cycle(tasks), ALONE):
            await finish(await opened(host, task, alone), alone)
        before = memory(host)
        loaded = Clock()
        start, cpu = time.perf_counter(), cpu_s(host)
        environments = await asyncio.gather(*(opened(host, task, loaded) for task in islice(cycle(tasks), concurrency)))
        open_s = time.perf_counter() - start
        after = memory(host)
        start = time.perf_counter()
        rewards = await asyncio.gather(*(finish(environment, loaded) for environment in environments))
        play_s = time.perf_counter() - start
        cpu = max(cpu_s(host) - cpu, CPU_TICK_S)
    return {
        "concurrency": concurrency,
        "processes": config.processes,
        "episodes_per_s": concurrency / (open_s + play_s),
        "tool_steps_per_s": len(loaded.step) / play_s,
        "episodes_per_core_s": concurrency / cpu,
        "tool_steps_per_core_s": len(loaded.step) / cpu,
        "slowest_step_ms": 1e3 * max(loaded.step),
        "reset_ms": 1e3 * mean(alone.reset),
        "step_ms": 1e3 * mean(alone.step),
        "score_ms": 1e3 * mean(alone.score),
        "mib_per_environment": (after - before) / concurrency,
        "mib_per_process": before / max(config.processes, 1),
        "solved": sum(rewards) / concurrency,
    }


async def opened(host: EnvironmentHost, task: Task, clock: Clock) -> AsyncEnvironment:
    environment = host.environment(task)
    start = time.perf_counter()
    await environment.reset()
    clock.reset.append(time.perf_counter() - start)
    return environment


async def finish(environment: AsyncEnvironment, clock: Clock) -> float:
    """Play the known solution, score, close. Returns the reward."""
    ended: Ending | None = None
    for action in await environment.demonstration():
        start = time.perf_counter()
        ended = (await environment.step(action)).ended
        clock.step.append(time.perf_counter() - start)
    start = time.perf_counter()
    score = await environment.score(ended or Ending.MAX_TURNS)
    clock.score.append(time.perf_counter() - start)
    await environment.close()
    return score.reward


def memory(host: EnvironmentHost) -> float:
    return sum(resident_mib(pid) for pid in host.process_ids()) if host.process_ids() else resident_mib()


def cpu_s(host: EnvironmentHost) -> float:
    """CPU time so far of this process and the worker processes: what counts on a machine that does other things too."""
    used = [psutil.Process(pid).cpu_times() for pid in [os.getpid(), *host.process_ids()]]
    return sum(each.user + each.system for each in used)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)

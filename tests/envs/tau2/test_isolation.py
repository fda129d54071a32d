"""Episodes that run at the same time are the episodes that would have run alone."""

import random
import threading

import pytest

from envs.protocol import Action
from envs.registry import list_tasks, make_environment
from envs.tau2.domains import DOMAINS, _parsed
from envs.tau2.environment import Tau2Environment
from envs.tau2.upstream import registry
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Task
from tests.envs.tau2.playing import config_for, variants

SETTINGS = [("mock", "train", "solo"), ("telecom", "base", "solo"), ("telecom", "base", "scripted")]
HEAVY = [("retail", "base", "scripted"), ("airline", "base", "scripted")]

Plan = tuple[EnvironmentConfig, Task, list[Action]]


def plans(domain: str, split: str, kind: str, tasks: int, ways: int = 6) -> list[Plan]:
    """Right and wrong ways to play some tasks, several of each task."""
    chance = random.Random(f"isolation {domain} {kind}")
    config = config_for(domain, kind)
    result = []
    for task in chance.sample(list_tasks(config, split), tasks):
        environment = make_environment(config, task)
        environment.reset()
        chosen = chance.sample(list(variants(environment.demonstration(), chance).values()), ways)
        result += [(config, task, actions) for actions in chosen]
    return result


class Recorder:
    """One episode, one action at a time, writing down everything that the agent could see."""

    def __init__(self, plan: Plan) -> None:
        config, task, self.actions = plan
        self.environment: Tau2Environment = make_environment(config, task)
        self.environment.reset()
        self.seen = [self.environment.observe()]

    def advance(self) -> bool:
        if self.seen[-1].ended is not None or not self.actions:
            return False
        action, *self.actions = self.actions
        self.environment.step(action)
        self.seen.append(self.environment.observe())
        return True

    def outcome(self) -> tuple:
        ended = self.seen[-1].ended or Ending.MAX_TURNS
        world = self.environment._world
        return self.seen, self.environment.score(ended), world.get_db_hash(), world.get_user_db_hash()


def alone(plan: Plan) -> tuple:
    recorder = Recorder(plan)
    while recorder.advance():
        pass
    return recorder.outcome()


def interleaved(all_plans: list[Plan], chance: random.Random) -> list[tuple]:
    recorders = [Recorder(plan) for plan in all_plans]
    running = list(recorders)
    while running:
        recorder = chance.choice(running)
        if not recorder.advance():
            running.remove(recorder)
    return [recorder.outcome() for recorder in recorders]


def test_hundreds_of_interleaved_episodes_are_what_each_is_alone() -> None:
    everything = [plan for setting in SETTINGS for plan in plans(*setting, tasks=12)]
    everything += [plan for setting in HEAVY for plan in plans(*setting, tasks=1, ways=2)]
    assert len(everything) > 200
    expected = [alone(plan) for plan in everything]
    assert interleaved(everything, random.Random(0)) == expected


def test_episodes_in_threads_are_what_each_is_alone() -> None:
    everything = [plan for setting in SETTINGS for plan in plans(*setting, tasks=3)]
    expected = [alone(plan) for plan in everything]
    outcomes: list[tuple | None] = [None] * len(everything)

    def run(index: int) -> None:
        outcomes[index] = alone(everything[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(everything))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert outcomes == expected


@pytest.mark.parametrize(
    "name", ["mock", "telecom", *(pytest.param(name, marks=pytest.mark.slow) for name in ("retail", "airline"))]
)
def test_a_world_from_cached_data_is_upstreams_own_and_never_changes_the_cache(name: str) -> None:
    domain = DOMAINS[name]
    fresh = registry.get_env_constructor(name)()
    expected = fresh.get_db_hash(), fresh.get_user_db_hash()
    for plan in plans(name, "train" if name == "mock" else "base", "solo" if domain.solo else "scripted", 2):
        alone(plan)
    world = domain.build(solo=False)
    assert (world.get_db_hash(), world.get_user_db_hash()) == expected
    for argument, model, path in domain.databases:
        cached = model.model_validate(_parsed(path))
        assert cached.get_hash() == model.load(path).get_hash(), argument

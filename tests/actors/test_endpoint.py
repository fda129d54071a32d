"""Agents through the pool: real agents in worker processes, the real endpoint, a real controller; workers that sample at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.controller import Controller
from actors.environment_pool import EnvironmentPool
from rl_system.algorithms.sequences import sequence_runs
from rl_system.config.run import RunConfig
from rl_system.records import Ending, Episode, Turn
from tests.agents import calling
from tests.models import save_tiny_chat_model

TIMEOUT_S = 240


@ray.remote(num_cpus=0)
class Sampling:
    """Answers with a few random words at once, and keeps what it was given and gave.

    hold: requests wait until `let_go`. fail: they raise, as an engine that is of no use any more.
    """

    def __init__(self, hold: bool = False, fail: bool = False) -> None:
        self.done: list[tuple[list[int], list[int], float | None, int | None]] = []
        self.cancelled, self.fail = 0, fail
        self.gate = asyncio.Event()
        if not hold:
            self.gate.set()

    async def generate(self, prompt_ids, max_new_tokens, temperature, prefix, seed) -> Turn:
        if self.fail:
            raise ConnectionError("this engine is of no use")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        numbers = np.random.default_rng(seed if seed is not None else len(self.done))
        ids = numbers.integers(1000, 9000, min(max_new_tokens, 6)).astype(np.int32)
        version = len(self.done) // 20
        self.done.append((prompt_ids.tolist(), ids.tolist(), temperature, seed))
        finish = "length" if len(ids) == max_new_tokens else "stop"
        return Turn(prompt_ids, ids, -np.ones(len(ids), np.float32), np.full(len(ids), version, np.int32), finish)

    async def let_go(self) -> None:
        self.gate.set()

    async def seen(self) -> tuple[list, int]:
        return self.done, self.cancelled


@ray.remote(num_cpus=0)
class Nothing:
    async def score(self, *_) -> None: ...


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_chat_model(tmp_path_factory.mktemp("chat_model"))


def call(reference):
    return ray.get(reference, timeout=TIMEOUT_S)


class Played:
    """Episodes of the behaviours of a split, each as often as asked, and all that the engine saw."""

    def __init__(self, model: Path, split: str, each: int = 1, *, worker=None, temperature: float = 0.5, **overrides) -> None:
        environment = {"name": calling.__name__, "split": split, "processes": 1, "episode_timeout_s": 120.0}
        values = {
            "name": "endpoint-test",
            "model": {"path": str(model), "max_model_len": 1024},
            "environment": environment | overrides.pop("environment", {}),
            "rollout": {"sampling": {"max_new_tokens": 32}} | overrides.pop("rollout", {}),
            "warm_start": {"enabled": False},
        }
        self.config = RunConfig.model_validate(values | overrides)
        self.worker = worker or Sampling.remote()
        controller = Controller.remote(self.config, None)
        self.pool = EnvironmentPool.remote(self.config, model, controller, Nothing.remote(), None)
        call(self.pool.start.remote())
        call(self.pool.set_workers.remote({0: self.worker}))
        self.evaluation = self.pool.evaluate.remote(split, each, None, temperature)
        self.actors = [self.pool, controller, self.worker]

    def episodes(self) -> list[Episode]:
        return call(self.evaluation)

    def seen(self) -> tuple[list, int]:
        return call(self.worker.seen.remote())

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_) -> None:
        call(self.pool.close.remote())
        for actor in self.actors:
            ray.kill(actor)


def turns_of(episodes: list[Episode]) -> list[tuple[list[int], list[int]]]:
    return [(turn.prompt_ids.tolist(), turn.response_ids.tolist()) for each in episodes for turn in each.turns]


def test_agents_play_and_every_token_of_the_engine_is_in_the_episode_that_asked_for_it(local_ray, model):
    split = "talks+uses_tools+helper+compacts+in_parallel+never_calls"
    with Played(model, split, each=2) as played:
        episodes = played.episodes()
        done, _ = played.seen()
        metrics = call(played.pool.take_metrics.remote())
    assert [each.ended for each in episodes] == [Ending.AGENT_STOP] * 12
    assert [each.reward for each in episodes[2:]] == [0.5, 0.5, 0.75, 0.75, 0.6, 0.6, 0.4, 0.4, 0.1, 0.1]
    assert sorted(turns_of(episodes)) == sorted((prompt, ids) for prompt, ids, *_ in done)
    assert {temperature for *_, temperature, _ in done} == {0.5}
    by_task = {each.task.task_id: each for each in episodes}
    assert by_task["talks"].parents == by_task["uses_tools"].parents == [-1, 0, 1]
    assert by_task["helper"].parents == [-1, -1, 1, 0, -1, 4]
    assert by_task["compacts"].parents == [-1, 0, -1, 2]
    assert Counter(by_task["in_parallel"].parents)[-1] == 6 and len(by_task["in_parallel"].turns) == 9
    # A dialogue without forks is one sequence, whatever was asked in between.
    runs = {name: sequence_runs(each.turns) for name, each in by_task.items()}
    assert (len(runs["talks"]), len(runs["helper"]), len(runs["compacts"])) == (1, 3, 2)
    assert all(each.counts.get("edited_histories", 0) == 0 for each in episodes)
    assert metrics["rollout/environments_abandoned"] == 0


def test_what_goes_wrong_in_an_agent_is_its_own_affair(local_ray, model):
    split = "raises+exits+by_call+wrong_id+asks_for_another_key+talks"
    with Played(model, split) as played:
        raises, exits, by_call, wrong_id, other_key, talks = played.episodes()
        news, verdict = call(played.pool.take_failures.remote())
    assert raises.ended is exits.ended is Ending.AGENT_ERROR and raises.reward == exits.reward == 0.0
    assert raises.failure.of == "agent" and "no such order" in raises.failure.what and "calling.py" in raises.failure.what
    assert len(raises.turns) == 1 and "SystemExit" in exits.failure.what
    assert (by_call.reward, by_call.turn_rewards) == (0.5, {0: 1.0, 1: 0.0})
    assert wrong_id.ended is Ending.FAILED and "chatcmpl-unknown" in wrong_id.failure.what
    assert other_key.reward == 0.2 and other_key.turns == []
    assert talks.ended is Ending.AGENT_STOP and len(talks.turns) == 3
    assert len(news) == 3 and verdict is None


def test_an_agent_that_hangs_costs_its_own_episode_and_its_calls_after_the_end_are_refused(local_ray, model, tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_LATE_CALLS", str(tmp_path))
    environment = {"episode_timeout_s": 6.0}
    with Played(model, "hangs+calls_on+talks", environment=environment) as played:
        hangs, calls_on, talks = played.episodes()
    assert (hangs.ended, len(hangs.turns)) == (Ending.TIMEOUT, 1)
    assert calls_on.reward == 0.3 and talks.ended is Ending.AGENT_STOP


def test_an_agent_that_calls_too_often_runs_out_of_turns_and_one_that_samples_too_much_of_tokens(local_ray, model):
    with Played(model, "calls_too_often", environment={"max_turns": 20}) as played:
        (often,) = played.episodes()
    assert (often.ended, len(often.turns), often.reward) == (Ending.MAX_TURNS, 20, 0.0)
    with Played(model, "talks", rollout={"max_episode_tokens": 8}) as played:
        (much,) = played.episodes()
    assert much.ended is Ending.MAX_TOKENS and sum(len(turn.response_ids) for turn in much.turns) == 8


def test_a_failure_of_the_engines_is_never_a_reward_of_0_whatever_the_agent_makes_of_it(local_ray, model):
    with Played(model, "swallows_failures+never_calls", worker=Sampling.remote(fail=True)) as played:
        swallows, never_calls = played.episodes()
    assert swallows.ended is Ending.FAILED and "of no use" in swallows.failure.what
    assert never_calls.ended is Ending.AGENT_STOP and never_calls.reward == 0.1


def test_a_server_that_dies_fails_the_episodes_that_called_it_and_the_next_ones_find_a_new_one(local_ray, model):
    with Played(model, "talks", each=4, worker=Sampling.remote(hold=True)) as played:
        time.sleep(3)
        (endpoint,) = call(played.pool.endpoints.remote())
        ray.kill(endpoint, no_restart=False)
        call(played.worker.let_go.remote())
        episodes = played.episodes()
    # Played again, by the server that took its place.
    assert [each.ended for each in episodes] == [Ending.AGENT_STOP] * 4
    assert all(len(each.turns) == 3 for each in episodes)

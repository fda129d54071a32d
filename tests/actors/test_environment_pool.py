"""The pool with a real controller and real environments, sampling from workers that keep some requests waiting."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.controller import Controller
from actors.environment_pool import EnvironmentPool
from rl_system.config.run import RunConfig
from rl_system.records import Ending, Episode, Turn
from rl_system.tracking.names import unlisted
from tests.envs import breaking, misbehaving
from tests.models import save_tiny_chat_model

TIMEOUT_S = 240


@ray.remote(num_cpus=0)
class Straggling:
    """Answers with two tokens at once, but the first `slow` requests only after an hour."""

    def __init__(self, slow: int) -> None:
        self.slow, self.requests, self.cancelled = slow, 0, 0

    async def generate(self, prompt_ids, max_new_tokens, temperature, prefix, seed) -> Turn:
        self.requests += 1
        if self.requests <= self.slow:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return Turn(prompt_ids, np.array([5, 6], np.int32), np.zeros(2, np.float32), np.zeros(2, np.int32), "stop")

    async def counts(self) -> tuple[int, int]:
        return self.requests, self.cancelled


@ray.remote(num_cpus=0)
class Scored:
    """In place of the reward actor: keeps what it is given."""

    def __init__(self) -> None:
        self.groups: list[list[Episode]] = []

    async def score(self, group_id: int, episodes: list[ray.ObjectRef]) -> None:
        self.groups.append(list(await asyncio.gather(*episodes)))

    async def taken(self) -> list[list[Episode]]:
        return self.groups


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_chat_model(tmp_path_factory.mktemp("chat_model"))


def play_groups(
    model: Path, groups: int, environment: dict, rollout: dict, slow: int = 0
) -> tuple[list[list[Episode]], dict[str, float], tuple[int, int], dict]:
    """The first groups of a run, the pool's metrics, requests made and cancelled at the worker, the controller's status."""
    config = RunConfig.model_validate(
        {
            "name": "pool-test",
            "steps": groups,
            "model": {"path": str(model), "max_model_len": 1536},
            "environment": environment,
            "rollout": {"group_size": 2, "groups_per_batch": 1, "max_staleness": groups - 1} | rollout,
        }
    )
    controller, reward, worker = Controller.remote(config, None), Scored.remote(), Straggling.remote(slow)
    pool = EnvironmentPool.remote(config, model, controller, reward, None)
    call(pool.start.remote())
    call(pool.set_workers.remote({0: worker}))
    running = pool.run.remote()
    deadline = time.monotonic() + TIMEOUT_S
    while len(scored := call(reward.taken.remote())) < groups:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    call(pool.stop.remote())
    call(running)
    metrics, counts = call(pool.take_metrics.remote()), call(worker.counts.remote())
    status = call(controller.status.remote())
    call(pool.close.remote())
    for actor in (pool, controller, reward, worker):
        ray.kill(actor)
    assert len(scored) == groups and unlisted(metrics) == []
    return scored, metrics, counts, status


def play_one_group(model: Path, over_sample: int, slow: int) -> tuple[list[Episode], dict[str, float], tuple[int, int]]:
    environment = {"domain": "mock", "processes": 0, "max_turns": 1, "curriculum": {"enabled": True}}
    (group,), metrics, counts, _ = play_groups(model, 1, environment, {"over_sample": over_sample}, slow)
    return group, metrics, counts


def misbehaving_environment(tmp_path: Path, tasks: str) -> dict:
    values = {"name": misbehaving.__name__, "domain": str(tmp_path), "split": tasks}
    return values | {"processes": 2, "max_turns": 2, "step_timeout_s": 3.0}


def call(reference):
    return ray.get(reference, timeout=TIMEOUT_S)


def test_the_first_to_finish_make_the_group_and_stragglers_leave_their_engine(local_ray, model):
    episodes, metrics, (requests, cancelled) = play_one_group(model, over_sample=2, slow=2)
    assert len({episode.index for episode in episodes}) == 2
    assert (requests, cancelled) == (4, 2)
    assert metrics["rollout/cancelled_episodes"] == 2
    assert metrics["rollout/curriculum_seen_share"] > 0


def test_without_over_sampling_every_episode_that_was_started_counts(local_ray, model):
    episodes, metrics, counts = play_one_group(model, over_sample=0, slow=0)
    assert [episode.index for episode in episodes] == [0, 1]
    assert counts == (2, 0) and metrics["rollout/cancelled_episodes"] == 0


@pytest.mark.parametrize("behaviour", ["hangs_once", "hangs_in_reset_once", "dies_once"])
def test_an_environment_that_hangs_or_crashes_is_replaced_and_counted_and_its_group_completed(
    local_ray, model, tmp_path, behaviour
):
    (group,), metrics, _, status = play_groups(model, 1, misbehaving_environment(tmp_path, behaviour), {})
    assert [episode.index for episode in group] == [0, 1]
    assert {(episode.ended, episode.reward) for episode in group} == {(Ending.MAX_TURNS, 1.0)}
    assert metrics["rollout/environments_abandoned"] >= 1
    assert metrics["rollout/environment_processes_replaced"] == 1
    assert status["dropped"] == {}


def test_a_group_whose_environment_always_hangs_is_dropped_whole_and_the_run_goes_on(local_ray, model, tmp_path):
    groups, metrics, _, status = play_groups(model, 2, misbehaving_environment(tmp_path, "hangs+well"), {})
    assert {episode.task.task_id for group in groups for episode in group} == {"well"}
    # Each time it was played three times over; no other group is lost while its processes are replaced.
    dropped = status["dropped"]["failed"]
    assert 1 <= dropped <= 3 and metrics["rollout/environments_abandoned"] >= 3 * dropped


def test_an_environment_that_fails_for_nearly_all_tasks_is_told_with_its_place_and_given_up(local_ray, model, tmp_path):
    """Long before so many groups are dropped that the run would end for that."""
    tasks = "fine+" + "+".join(f"step raises {number}" for number in range(20))
    environment = {"name": breaking.__name__, "split": tasks, "processes": 1, "max_turns": 2, "concurrency": 4}
    config = RunConfig.model_validate(
        {
            "name": "broken",
            "output": tmp_path,
            "model": {"path": str(model), "max_model_len": 1536},
            "environment": environment,
            "rollout": {"group_size": 2, "groups_per_batch": 1, "max_staleness": 1},
        }
    )
    controller, reward, worker = Controller.remote(config, None), Scored.remote(), Straggling.remote(0)
    pool = EnvironmentPool.remote(config, model, controller, reward, None)
    call(pool.start.remote())
    call(pool.set_workers.remote({0: worker}))
    running = pool.run.remote()
    news, verdict, deadline = [], None, time.monotonic() + TIMEOUT_S
    while verdict is None:
        assert time.monotonic() < deadline
        more, verdict = call(pool.take_failures.remote())
        news += more
        time.sleep(0.05)
    call(pool.stop.remote())
    call(running)
    metrics, status = call(pool.take_metrics.remote()), call(controller.status.remote())
    call(pool.close.remote())
    for actor in (pool, controller, reward, worker):
        ray.kill(actor)
    (sighting,) = news
    assert "step raised KeyError: 'missing' (tests/envs/breaking.py, line" in sighting.failure.what
    assert sighting.failure.what in verdict and str(tmp_path / "broken" / "failures.log") in verdict
    assert (tmp_path / "broken" / "failures.log").read_text().count("Traceback (most recent call last)") == 3
    assert metrics["rollout/environment_failures"] >= 16 and status["dropped"]["failed"] < 20

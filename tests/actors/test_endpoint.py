"""Agents through the pool: real agents in worker processes, the real endpoint, a real controller; workers that sample at once."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import ray
from ray.exceptions import TaskCancelledError

from actors.controller import Controller
from actors.environment_pool import EVALUATION_GROUP, EnvironmentPool
from rl_system.algorithms.sequences import sequence_runs
from rl_system.chat.renderer import Renderer
from rl_system.config.model import ModelConfig
from rl_system.config.run import RunConfig
from rl_system.records import Ending, Episode, Turn
from rl_system.seeds import turn_seed
from rl_system.training.loading import load_tokenizer
from tests.agents import calling
from tests.models import save_tiny_chat_model

TIMEOUT_S = 240


@ray.remote(num_cpus=0)
class Sampling:
    """Answers with a few random words at once, and keeps what it was given and gave.

    held: requests that wait until `let_go`. fail: they raise, as an engine that is of no use any more.
    """

    def __init__(self, held: float = 0, fail: bool = False) -> None:
        self.done: list[tuple[list[int], list[int], float | None, int | None]] = []
        self.waiting, self.cancelled, self.fail = 0, 0, fail
        self.hold(held)

    def hold(self, requests: float) -> None:
        """The next so many."""
        self.held, self.gate = requests, asyncio.Event()

    async def generate(self, prompt_ids, max_new_tokens, temperature, prefix, seed) -> Turn:
        if self.fail:
            raise ConnectionError("this engine is of no use")
        if self.held > 0:
            self.held, self.waiting = self.held - 1, self.waiting + 1
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.waiting -= 1
        numbers = np.random.default_rng(seed if seed is not None else len(self.done))
        ids = numbers.integers(1000, 9000, min(max_new_tokens, 6)).astype(np.int32)
        version = len(self.done) // 20
        self.done.append((prompt_ids.tolist(), ids.tolist(), temperature, seed))
        finish = "length" if len(ids) == max_new_tokens else "stop"
        return Turn(prompt_ids, ids, -np.ones(len(ids), np.float32), np.full(len(ids), version, np.int32), finish)

    async def let_go(self) -> None:
        self.held = 0
        self.gate.set()

    async def seen(self) -> list:
        return self.done

    async def under_way(self) -> tuple[int, int]:
        """Requests that wait, and those that were cancelled."""
        return self.waiting, self.cancelled


@ray.remote(num_cpus=0)
class Scored:
    """Keeps the groups that it is given, and counts them as finished."""

    def __init__(self, controller) -> None:
        self.controller, self.groups = controller, []

    async def score(self, group_id: int, episodes: list) -> None:
        self.groups.append(await asyncio.gather(*episodes))
        await self.controller.finish_group.remote(group_id)

    def taken(self) -> list[list[Episode]]:
        return self.groups


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_chat_model(tmp_path_factory.mktemp("chat_model"))


def call(reference):
    return ray.get(reference, timeout=TIMEOUT_S)


class Playing:
    """A pool of agents, and the engine that it has. variables: of the environment of its processes."""

    def __init__(self, model: Path, *, worker=None, variables: dict[str, str] | None = None, **overrides) -> None:
        environment = {"name": calling.__name__, "split": "talks", "processes": 1, "episode_timeout_s": 120.0}
        values = {
            "name": "endpoint-test",
            "model": {"path": str(model), "max_model_len": 1024},
            "environment": environment | overrides.pop("environment", {}),
            "rollout": {"sampling": {"max_new_tokens": 32}} | overrides.pop("rollout", {}),
            "warm_start": {"enabled": False},
        }
        self.config = RunConfig.model_validate(values | overrides)
        self.worker = worker or Sampling.remote()
        self.controller = Controller.remote(self.config, None)
        self.reward = Scored.remote(self.controller)
        options = {"runtime_env": {"env_vars": variables}} if variables else {}
        self.pool = EnvironmentPool.options(**options).remote(self.config, model, self.controller, self.reward, None)
        call(self.pool.start.remote())
        call(self.pool.set_workers.remote({0: self.worker}))

    def begin(self, split: str, each: int = 1, temperature: float = 0.5):
        """Play the behaviours of `split`, each so often."""
        return self.pool.evaluate.remote(split, each, None, temperature)

    def play(self, split: str, each: int = 1) -> tuple[list[Episode], list]:
        """Their episodes, and what the engine did for them."""
        before = len(self.seen())
        episodes = call(self.begin(split, each))
        return episodes, self.seen()[before:]

    def seen(self) -> list:
        return call(self.worker.seen.remote())

    def endpoints(self) -> list[tuple[str, list[str]]]:
        """Every server's address, and the keys that it takes."""
        looked = [
            each.__ray_call__.remote(lambda actor: (actor._server._socket and actor._server.base_url, [*actor._server._sessions]))
            for each in call(self.pool.endpoints.remote())
        ]
        return call(looked)

    def held(self) -> dict[str, int]:
        """What episodes hold now."""
        return call(self.pool.__ray_call__.remote(_held_in)) | {
            "engine": call(self.worker.under_way.remote())[0],
            "keys": sum(len(keys) for _, keys in self.endpoints()),
            "permits": call(self.controller.status.remote())["running"],
        }

    def __enter__(self) -> Playing:
        return self

    def __exit__(self, *_) -> None:
        call(self.pool.close.remote())
        for actor in (self.pool, self.controller, self.reward, self.worker):
            ray.kill(actor)


def _held_in(pool) -> dict[str, int]:
    return {
        "slots": pool.config.environment.concurrency - pool._slots._value,
        "turns": pool.turns.episodes,
        "workers": len(pool.turns._router._routes),
        "doors": sum(pool.endpoint._sessions.values()),
        "agents": pool.host.statistics()["environments_open"],
    }


@pytest.fixture(scope="module")
def playing(local_ray, model) -> Iterator[Playing]:
    """Two servers; a run of one group of two that starts two episodes more."""
    rollout = {"group_size": 2, "over_sample": 2, "groups_per_batch": 1, "max_staleness": 0, "sampling": {"max_new_tokens": 32}}
    with Playing(model, steps=1, rollout=rollout, environment={"endpoint": {"processes": 2}}) as pool:
        yield pool


def until(holds: Callable[[], bool], what: Callable[[], object] = str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, str(what())
        time.sleep(0.05)


def turns_of(episodes: list[Episode]) -> list[tuple[list[int], list[int]]]:
    return [(turn.prompt_ids.tolist(), turn.response_ids.tolist()) for each in episodes for turn in each.turns]


def test_agents_play_and_every_token_of_the_engine_is_in_the_episode_that_asked_for_it(playing):
    episodes, done = playing.play("talks+uses_tools+helper+compacts+in_parallel+never_calls", each=2)
    metrics = call(playing.pool.take_metrics.remote())
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


def test_what_goes_wrong_in_an_agent_is_its_own_affair(playing):
    split = "raises+exits+by_call+wrong_id+asks_for_another_key+talks"
    (raises, exits, by_call, wrong_id, other_key, talks), _ = playing.play(split)
    news, verdict = call(playing.pool.take_failures.remote())
    assert raises.ended is exits.ended is Ending.AGENT_ERROR and raises.reward == exits.reward == 0.0
    assert raises.failure.of == "agent" and "no such order" in raises.failure.what and "calling.py" in raises.failure.what
    assert len(raises.turns) == 1 and "SystemExit" in exits.failure.what
    assert (by_call.reward, by_call.turn_rewards) == (0.5, {0: 1.0, 1: 0.0})
    assert wrong_id.ended is Ending.FAILED and "chatcmpl-unknown" in wrong_id.failure.what
    assert other_key.reward == 0.2 and other_key.turns == []
    assert talks.ended is Ending.AGENT_STOP and len(talks.turns) == 3
    assert len(news) == 3 and verdict is None


def test_an_agent_that_hangs_costs_its_own_episode_and_its_calls_after_the_end_are_refused(local_ray, model, tmp_path):
    variables = {"TEST_LATE_CALLS": str(tmp_path)}
    with Playing(model, variables=variables, environment={"episode_timeout_s": 6.0}) as playing:
        (hangs, calls_on, talks), _ = playing.play("hangs+calls_on+talks")
        until((tmp_path / "late").exists)
    assert (tmp_path / "late").read_text() == "AuthenticationError"
    assert (hangs.ended, len(hangs.turns)) == (Ending.TIMEOUT, 1)
    assert calls_on.reward == 0.3 and talks.ended is Ending.AGENT_STOP


def test_an_agent_that_calls_too_often_runs_out_of_turns_and_one_that_samples_too_much_of_tokens(local_ray, model):
    with Playing(model, environment={"max_turns": 20}, rollout={"max_episode_tokens": 21}) as playing:
        (often, much), _ = playing.play("calls_too_often+talks_at_length")
    assert (often.ended, len(often.turns), often.reward) == (Ending.MAX_TURNS, 20, 0.0)
    assert much.ended is Ending.MAX_TOKENS and sum(len(turn.response_ids) for turn in much.turns) == 21


def test_a_failure_of_the_engines_is_never_a_reward_of_0_whatever_the_agent_makes_of_it(local_ray, model):
    with Playing(model, worker=Sampling.remote(fail=True)) as playing:
        (swallows, never_calls), _ = playing.play("swallows_failures+never_calls")
    assert swallows.ended is Ending.FAILED and "of no use" in swallows.failure.what
    assert never_calls.ended is Ending.AGENT_STOP and never_calls.reward == 0.1


def test_a_server_that_dies_fails_the_episodes_that_called_it_and_the_next_ones_find_a_new_one(local_ray, model):
    with Playing(model, worker=Sampling.remote(held=math.inf)) as playing:
        evaluation = playing.begin("talks", 4)
        until(lambda: playing.held()["engine"] == 4)
        (endpoint,) = call(playing.pool.endpoints.remote())
        ray.kill(endpoint, no_restart=False)
        call(playing.worker.let_go.remote())
        episodes = call(evaluation)
    # Played again, by the server that took its place.
    assert [each.ended for each in episodes] == [Ending.AGENT_STOP] * 4
    assert all(len(each.turns) == 3 for each in episodes)


def refused(address: str, key: str) -> bool:
    body = {"model": "policy", "messages": [{"role": "user", "content": "Late."}]}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=30)
    return answer.status_code == 401


def test_episodes_that_are_cancelled_leave_no_request_in_the_engine_no_key_and_no_place(playing):
    before = call(playing.worker.under_way.remote())[1]
    call(playing.worker.hold.remote(math.inf))
    evaluation = playing.begin("talks+in_parallel", 6)
    until(lambda: playing.held()["engine"] == 6 + 6 * 6, playing.held)
    opened = [(address, key) for address, keys in playing.endpoints() for key in keys]
    assert len(opened) == 12 and len({address for address, _ in opened}) == 2
    ray.cancel(evaluation, recursive=False)
    until(lambda: not any(playing.held().values()), playing.held)
    assert call(playing.worker.under_way.remote()) == (0, before + 42)
    assert all(refused(address, key) for address, key in opened)
    call(playing.worker.let_go.remote())


def test_an_episode_that_is_cancelled_while_it_begins_leaves_nothing_either(playing):
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02, 0.05):
        evaluation = playing.begin("talks", 8)
        time.sleep(delay)
        ray.cancel(evaluation, recursive=False)
        with pytest.raises(TaskCancelledError):
            call(evaluation)
    until(lambda: not any(playing.held().values()), playing.held)


def test_stragglers_of_a_group_leave_nothing_and_the_groups_permit_is_free(playing):
    cancelled = call(playing.worker.under_way.remote())[1]
    call(playing.worker.hold.remote(2))
    running = playing.pool.run.remote()
    until(lambda: call(playing.reward.taken.remote()))
    call(playing.pool.stop.remote())
    call(running)
    until(lambda: not any(playing.held().values()), playing.held)
    ((first, second),) = call(playing.reward.taken.remote())
    assert first.ended is second.ended is Ending.AGENT_STOP
    assert call(playing.worker.under_way.remote()) == (0, cancelled + 2)
    assert call(playing.pool.take_metrics.remote())["rollout/cancelled_episodes"] == 2
    call(playing.worker.let_go.remote())


def test_keys_and_tokens_of_episodes_stay_apart_also_over_several_servers(playing, model):
    episodes, done = playing.play("speaks_of_itself", each=24)
    renderer = Renderer(load_tokenizer(ModelConfig(path=str(model))))
    keys = [
        {key for turn in each.turns for key in re.findall(r"My key ends in (\S+)\.", renderer.text(turn.prompt_ids))}
        for each in episodes
    ]
    assert all(len(each) == 1 for each in keys) and len(set.union(*keys)) == 24
    assert sorted(turns_of(episodes)) == sorted((prompt, ids) for prompt, ids, *_ in done)


def test_seeds_follow_from_prompts_and_never_from_what_was_faster(local_ray, model):
    rollout = {"max_staleness": 0, "sampling": {"max_new_tokens": 32}}
    two = {"endpoint": {"processes": 2}}
    with Playing(model, deterministic=True, rollout=rollout, executor={"method": "tree"}, environment=two) as playing:
        (first, done), (second, _) = (playing.play("in_parallel+helper+talks", 2) for _ in range(2))
    assert turns_of(first) == turns_of(second) and [each.parents for each in first] == [each.parents for each in second]
    seeds = {(*prompt, -1, *ids): seed for prompt, ids, _, seed in done}
    assert len({*seeds.values()}) == len(done)
    for index, episode in enumerate(first):
        asked: Counter[tuple[int, ...]] = Counter()
        for turn in episode.turns:
            prompt = tuple(turn.prompt_ids.tolist())
            expected = turn_seed(playing.config.seed, EVALUATION_GROUP, index, turn.prompt_ids, asked[prompt])
            assert seeds[*prompt, -1, *turn.response_ids.tolist()] == expected
            asked[prompt] += 1

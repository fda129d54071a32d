"""Turns on their way through workers that break and leave, with workers whose tokens can be foretold."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import numpy as np
import pytest
import ray

from actors.engine.errors import EngineBroken, RequestFailed
from actors.turn_routing import TURN_ATTEMPTS, TurnRouting
from rl_system.allocation.handover import ABORTED, OVERDUE
from rl_system.chat.agent import GenerationFailed
from rl_system.records import Turn

PROMPT = np.array([7, 8], np.int32)
TOKENS = 12


@ray.remote(num_cpus=0)
class Counting:
    """Answers a prompt with 0, 1, 2, …, one token each `token_s` seconds, under its own policy version.

    limit: tokens after which it has worked on a turn for too long.
    """

    def __init__(self, version: int, token_s: float, limit: int = TOKENS) -> None:
        self.version, self.token_s, self.limit = version, token_s, limit
        self.aborted = asyncio.Event()
        self.requests = 0

    async def generate(self, prompt_ids, max_new_tokens, temperature, prefix, seed) -> Turn:
        self.requests += 1
        ids = [] if prefix is None else list(prefix.response_ids)
        versions = [] if prefix is None else list(prefix.versions)
        until = min(max_new_tokens, len(ids) + self.limit)
        while len(ids) < until and not self.aborted.is_set():
            await asyncio.sleep(self.token_s)
            ids.append(len(ids))
            versions.append(self.version)
        reason = "length" if len(ids) == max_new_tokens else ABORTED if self.aborted.is_set() else OVERDUE
        return Turn(prompt_ids, np.array(ids), np.zeros(len(ids)), np.array(versions), reason)

    async def hand_over(self) -> None:
        self.aborted.set()

    async def count(self) -> int:
        return self.requests


@ray.remote(num_cpus=0)
class Stumbling:
    """Cannot carry out a request, and goes on."""

    async def generate(self, prompt_ids, max_new_tokens, temperature, prefix, seed) -> Turn:
        raise RequestFailed("no")


@ray.remote(num_cpus=0)
class Broken:
    async def generate(self, prompt_ids, max_new_tokens, temperature, prefix, seed) -> Turn:
        raise EngineBroken("the engine died")


async def routing_over(*workers: ray.actor.ActorHandle) -> TurnRouting:
    routing = TurnRouting(30.0, lambda: None)
    await routing.set_workers(dict(enumerate(workers)))
    return routing


def test_a_turn_is_handed_over_where_it_stands_and_keeps_its_versions(local_ray):
    async def scenario() -> tuple[Turn, int]:
        leaving, staying = Counting.remote(3, 0.1), Counting.remote(4, 0.01)
        routing = await routing_over(leaving, staying)
        turn = asyncio.create_task(routing.generate("episode", PROMPT, TOKENS, 1.0))
        while not await leaving.count.remote():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.35)
        await routing.vacate(0)
        return await turn, routing.engines

    turn, engines = asyncio.run(scenario())
    assert turn.response_ids.tolist() == list(range(TOKENS))
    assert (np.diff(turn.versions) >= 0).all() and set(turn.versions.tolist()) == {3, 4}
    assert turn.finish_reason == "length" and engines == 1


def test_every_turn_of_a_worker_that_leaves_ends_elsewhere_and_none_goes_there_any_more(local_ray):
    async def scenario() -> tuple[list[Turn], int, int]:
        leaving, staying = Counting.remote(0, 0.05), Counting.remote(1, 0.001)
        routing = await routing_over(leaving, staying)
        turns = [asyncio.create_task(routing.generate(number, PROMPT, TOKENS, 1.0)) for number in range(20)]
        while not await leaving.count.remote():
            await asyncio.sleep(0.01)
        await routing.vacate(0)
        seen = await leaving.count.remote()
        await routing.generate("late", PROMPT, TOKENS, 1.0)
        return list(await asyncio.gather(*turns)), seen, await leaving.count.remote()

    turns, seen, later = asyncio.run(scenario())
    assert all(turn.response_ids.tolist() == list(range(TOKENS)) for turn in turns)
    assert seen > 0 and later == seen


def test_a_turn_survives_broken_workers_while_there_is_a_healthy_one(local_ray):
    async def scenario() -> Turn:
        routing = await routing_over(*(Broken.remote() for _ in range(TURN_ATTEMPTS - 1)), Counting.remote(0, 0.001))
        return await routing.generate("episode", PROMPT, TOKENS, 1.0)

    assert len(asyncio.run(scenario()).response_ids) == TOKENS


def test_a_turn_on_which_worker_after_worker_breaks_fails(local_ray):
    async def scenario() -> None:
        routing = await routing_over(*(Broken.remote() for _ in range(TURN_ATTEMPTS + 1)))
        await routing.generate("episode", PROMPT, TOKENS, 1.0)

    with pytest.raises(GenerationFailed, match=f"{TURN_ATTEMPTS} rollout workers in a row"):
        asyncio.run(scenario())


def test_a_worker_that_joins_gets_new_episodes_and_leaves_the_others_where_they_are(local_ray):
    async def scenario() -> tuple[int, int]:
        first, second = Counting.remote(0, 0.001), Counting.remote(0, 0.001)
        routing = await routing_over(first)
        await routing.generate("old", PROMPT, TOKENS, 1.0)
        await routing.set_workers({0: first, 5: second})
        await routing.generate("new", PROMPT, TOKENS, 1.0)
        await routing.generate("old", PROMPT, TOKENS, 1.0)
        return await first.count.remote(), await second.count.remote()

    assert asyncio.run(scenario()) == (2, 1)


def test_a_slow_turn_goes_on_elsewhere_from_its_tokens_and_its_worker_stays(local_ray):
    async def scenario() -> tuple[Turn, int, int]:
        slow, fast = Counting.remote(3, 0.01, limit=5), Counting.remote(4, 0.001)
        routing = await routing_over(slow, fast)
        turn = await routing.generate("episode", PROMPT, TOKENS, 1.0)
        return turn, routing.engines, routing.slow_turns

    turn, engines, slow_turns = asyncio.run(scenario())
    assert turn.response_ids.tolist() == list(range(TOKENS)) and turn.finish_reason == "length"
    assert turn.versions.tolist() == [3] * 5 + [4] * (TOKENS - 5)
    assert (engines, slow_turns) == (2, 1)


def test_a_slow_turn_goes_on_where_it_is_if_there_is_no_other_worker(local_ray):
    async def scenario() -> tuple[Turn, int]:
        routing = await routing_over(Counting.remote(3, 0.001, limit=5))
        return await routing.generate("episode", PROMPT, TOKENS, 1.0), routing.engines

    turn, engines = asyncio.run(scenario())
    assert turn.response_ids.tolist() == list(range(TOKENS)) and engines == 1


def test_a_turn_that_is_too_slow_time_after_time_fails_its_episode_and_nothing_else(local_ray):
    async def scenario() -> int:
        routing = await routing_over(Counting.remote(0, 0.001, limit=2), Counting.remote(0, 0.001, limit=2))
        with pytest.raises(GenerationFailed, match="took too long"):
            await routing.generate("episode", PROMPT, TOKENS, 1.0)
        await routing.generate("another", PROMPT, 2, 1.0)
        return routing.engines

    assert asyncio.run(scenario()) == 2


def test_where_a_seeded_turn_stood_when_it_was_too_slow_does_not_show_in_it(local_ray):
    async def scenario() -> Turn:
        routing = await routing_over(Counting.remote(3, 0.001, limit=5), Counting.remote(4, 0.001))
        return await routing.generate("episode", PROMPT, TOKENS, 1.0, seed=1)

    assert set(asyncio.run(scenario()).versions.tolist()) == {4}


def test_a_worker_that_cannot_carry_out_a_turn_stays_and_the_turn_is_tried_elsewhere(local_ray):
    async def scenario() -> tuple[Turn, int]:
        routing = await routing_over(Stumbling.remote(), Counting.remote(0, 0.001))
        return await routing.generate("episode", PROMPT, TOKENS, 1.0), routing.engines

    turn, engines = asyncio.run(scenario())
    assert len(turn.response_ids) == TOKENS and engines == 2


def test_a_worker_that_seemed_broken_is_back_once_it_is_named_among_the_healthy(local_ray):
    async def scenario() -> tuple[int, int]:
        broken, counting = Broken.remote(), Counting.remote(0, 0.001)
        routing = await routing_over(broken, counting)
        await routing.generate("episode", PROMPT, TOKENS, 1.0)
        before = routing.engines
        await routing.set_workers({0: broken, 1: counting})
        return before, routing.engines

    assert asyncio.run(scenario()) == (1, 2)


def test_the_end_of_a_worker_does_not_take_its_successor_out(local_ray):
    async def scenario() -> tuple[Turn, int]:
        first, second = Counting.remote(0, 1.0), Counting.remote(1, 0.001)
        routing = await routing_over(first)
        turn = asyncio.create_task(routing.generate("episode", PROMPT, TOKENS, 1.0))
        while not await first.count.remote():
            await asyncio.sleep(0.01)
        await routing.set_workers({0: second})
        ray.kill(first)
        return await asyncio.wait_for(turn, 20), routing.engines

    turn, engines = asyncio.run(scenario())
    assert set(turn.versions.tolist()) == {1} and engines == 1


def test_a_worker_that_dies_while_it_is_vacated_leaves_its_turns_to_others(local_ray):
    async def scenario() -> Turn:
        leaving, staying = Counting.remote(3, 1.0), Counting.remote(4, 0.001)
        routing = await routing_over(leaving, staying)
        turn = asyncio.create_task(routing.generate("episode", PROMPT, TOKENS, 1.0))
        while not await leaving.count.remote():
            await asyncio.sleep(0.01)
        ray.kill(leaving)
        await routing.vacate(0)
        return await turn

    assert set(asyncio.run(scenario()).versions.tolist()) == {4}


def test_episodes_wait_for_a_worker_and_are_told_that_they_do(local_ray):
    waited: list[float] = []

    @contextlib.contextmanager
    def without_worker() -> Iterator[None]:
        began = time.monotonic()
        yield
        waited.append(time.monotonic() - began)

    async def scenario() -> None:
        counting = Counting.remote(0, 0.001)
        routing = await routing_over()
        turn = asyncio.create_task(routing.generate("episode", PROMPT, TOKENS, 1.0, None, without_worker))
        await asyncio.sleep(0.4)
        await routing.set_workers({0: counting})
        await turn
        await routing.generate("episode", PROMPT, TOKENS, 1.0, None, without_worker)

    asyncio.run(scenario())
    assert len(waited) == 1 and waited[0] >= 0.4

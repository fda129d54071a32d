"""Turns on their way through workers that break and leave, with workers whose tokens can be foretold."""

import asyncio

import numpy as np
import pytest
import ray

from actors.engine.errors import EngineBroken
from actors.turn_routing import TURN_ATTEMPTS, TurnRouting
from rl_system.allocation.handover import ABORTED
from rl_system.chat.agent import GenerationFailed
from rl_system.records import Turn

PROMPT = np.array([7, 8], np.int32)
TOKENS = 12


@ray.remote(num_cpus=0)
class Counting:
    """Answers a prompt with 0, 1, 2, …, one token each `token_s` seconds, under its own policy version."""

    def __init__(self, version: int, token_s: float) -> None:
        self.version, self.token_s = version, token_s
        self.aborted = asyncio.Event()
        self.requests = 0

    async def generate(self, prompt_ids, max_new_tokens, temperature, prefix, seed) -> Turn:
        self.requests += 1
        ids = [] if prefix is None else list(prefix.response_ids)
        versions = [] if prefix is None else list(prefix.versions)
        while len(ids) < max_new_tokens and not self.aborted.is_set():
            await asyncio.sleep(self.token_s)
            ids.append(len(ids))
            versions.append(self.version)
        reason = "length" if len(ids) == max_new_tokens else ABORTED
        return Turn(prompt_ids, np.array(ids), np.zeros(len(ids)), np.array(versions), reason)

    async def hand_over(self) -> None:
        self.aborted.set()

    async def count(self) -> int:
        return self.requests


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

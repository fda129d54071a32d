"""Upstream's own agents and orchestrator at the endpoint, beside this project's path through the same tasks.

Both are sampled by one seeded sampler, as in a deterministic run: a turn follows from the seed and its prompt alone.
"""

from __future__ import annotations

import asyncio
import random
import socket
from dataclasses import dataclass, field

import numpy as np
import pytest

from envs.agents import AgentRun, Endpoint
from envs.host import EnvironmentHost
from envs.protocol import Action, ToolCall
from envs.registry import agent_of, list_tasks
from rl_system.algorithms.sequences import sequences_of
from rl_system.chat.agent import Limits, run_episode
from rl_system.chat.demonstration import written_turn
from rl_system.chat.renderer import Renderer
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.endpoint.agent_episode import play_agent
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.server import EndpointServer
from rl_system.records import Ending, Episode, Task, Turn
from rl_system.seeds import turn_seed
from tests.rl_system.chat.dialogues import limits, make_renderer
from tests.rl_system.endpoint.servers import serving

UPSTREAM = EnvironmentConfig(name="envs.examples.tau2_upstream")
LIMITS = limits(max_turns=30, timeout_s=120.0)
SEED = 7
DONE = Action(tool_calls=(ToolCall("done", {}),))


@dataclass
class Policy:
    """Does one of `choices`, drawn by the seed of the turn. asked: (prompt ids, how often asked before)."""

    renderer: Renderer
    group: int
    choices: list[Action]
    asked: list[tuple[np.ndarray, int]] = field(default_factory=list)

    def turn(self, prompt_ids: np.ndarray, most: int, repeat: int = 0) -> Turn:
        self.asked.append((prompt_ids, repeat))
        numbers = np.random.default_rng(turn_seed(SEED, self.group, 0, prompt_ids, repeat))
        return written_turn(self.renderer, self.choices[numbers.integers(len(self.choices))], prompt_ids, most)


@dataclass
class Door:
    server: EndpointServer
    policy: Policy
    limits: Limits

    async def open(self) -> Endpoint:
        async def sample(prompt_ids, most, *, repeat, seed, stop) -> Turn:
            assert seed is None and stop == ()
            return self.policy.turn(prompt_ids, most, repeat)

        self.key = self.server.open_session("test", sample, self.limits, Serving(), ordered=True)
        return Endpoint(f"{self.server.base_url}/v1", self.key)

    async def close(self):
        return await self.server.close_session(self.key)


async def by_upstream(server: EndpointServer, policy: Policy, task: Task) -> Episode:
    async def run(endpoint: Endpoint, timeout_s: float):
        return await asyncio.wait_for(asyncio.to_thread(AgentRun(*agent_of(task), endpoint).to_end), timeout_s)

    return await play_agent(task, policy.group, 0, run, Door(server, policy, LIMITS), LIMITS)


async def by_ourselves(host: EnvironmentHost, policy: Policy, task: Task) -> Episode:
    async def generate(prompt_ids: np.ndarray, most: int) -> Turn:
        return policy.turn(prompt_ids, most)

    return await run_episode(task, policy.group, 0, host.environment(task), generate, policy.renderer, LIMITS)


def of_one(task: Task, actions: list[Action], chance: random.Random) -> list[Action]:
    """What a policy does on `task` that knows what to do, and does it at the wrong time, twice or wrongly."""
    work = [action for action in actions if action.tool_calls]
    wrong = [Action(tool_calls=(ToolCall("no_such_tool", {"a": 1}),)), Action(tool_calls=(ToolCall("get_users", {"b": [1.0]}),))]
    both = [Action(tool_calls=(*work[0].tool_calls, *wrong[0].tool_calls))] if work else []
    with_words = [Action("I will.", each.tool_calls) for each in work[:1]]
    return [*actions, *work, *both, *with_words, chance.choice(wrong)]


def played_both_ways(split: str, kind: str, sample: int, choices=of_one) -> list[tuple[Episode, Episode]]:
    """Episodes of the same tasks: by upstream, by ourselves."""
    ours = EnvironmentConfig(user=UserConfig(kind=kind), processes=0)
    chance = random.Random(f"{split} {kind}")
    suffix = "" if kind == "solo" else "+user"

    async def play() -> list[tuple[Episode, Episode]]:
        renderer, episodes = make_renderer(), []
        theirs = {task.task_id: task for task in list_tasks(UPSTREAM, split + suffix)}
        tasks = list_tasks(ours, split)
        assert [task.task_id for task in tasks] == list(theirs)
        async with serving(renderer) as server, EnvironmentHost(ours) as host:
            for group, task in enumerate(chance.sample(tasks, sample)):
                environment = host.environment(task)
                await environment.reset()
                actions = choices(task, await environment.demonstration(), chance)
                await environment.close()
                episodes.append((
                    await by_upstream(server, Policy(renderer, group, actions), theirs[task.task_id]),
                    await by_ourselves(host, Policy(renderer, group, actions), task),
                ))  # fmt: skip
        return episodes

    return asyncio.run(play())


def arrays(episode: Episode) -> list[tuple]:
    sequences = sequences_of(episode, episode.reward)
    return [(each.token_ids.tolist(), each.trained.tolist(), each.advantages.tolist()) for each in sequences]


@pytest.mark.parametrize(("split", "kind", "sample"), [("train", "solo", 16), ("base", "solo", 6), ("train", "scripted", 8)])
def test_upstreams_agent_is_shown_sampled_and_rewarded_as_our_own_path_token_by_token(split, kind, sample):
    episodes = played_both_ways(split, kind, sample)
    for theirs, ours in episodes:
        name = ours.task.task_id
        assert ours.failure is None
        # Upstream's evaluator raises on what some agents leave behind; here such a judgement is not met.
        assert theirs.failure is None or (ours.counts["evaluator_errors"] and "evaluator" in theirs.failure.details), name
        for mine, other in zip(ours.turns, theirs.turns, strict=True):
            assert np.array_equal(mine.prompt_ids, other.prompt_ids), name
            assert np.array_equal(mine.response_ids, other.response_ids), name
        assert theirs.parents == list(range(-1, len(ours.turns) - 1)) and not theirs.counts.get("edited_histories"), name
        assert theirs.reward == ours.reward, name
        assert arrays(theirs) == arrays(ours), name
        assert len(arrays(ours)) == 1
    assert {ours.reward for _, ours in episodes} == {0.0, 1.0} or kind == "scripted"
    assert max(len(ours.turns) for _, ours in episodes) >= 4


def test_upstream_ends_at_words_where_only_calls_are_read_and_our_own_path_answers_them():
    ((theirs, ours),) = played_both_ways("train", "solo", 1, lambda *_: [Action("I would rather talk.")])
    assert (len(theirs.turns), theirs.reward, theirs.ended, theirs.failure) == (1, 0.0, Ending.AGENT_STOP, None)
    assert len(ours.turns) == LIMITS.max_errors and ours.reward == 0.0
    assert np.array_equal(theirs.turns[0].token_ids, ours.turns[0].token_ids)


def test_upstream_asks_again_for_an_empty_answer_which_is_another_branch():
    ((theirs, ours),) = played_both_ways("train", "solo", 1, lambda *_: [Action()])
    assert len(theirs.turns) > 1 and theirs.parents == [-1] * len(theirs.turns) and theirs.reward == 0.0
    assert all(np.array_equal(turn.prompt_ids, ours.turns[0].prompt_ids) for turn in theirs.turns)


def test_nothing_but_the_endpoint_is_called(monkeypatch):
    called, connect = set(), socket.socket.connect

    def noted(self, address):
        called.add(address if isinstance(address, str) else address[0])
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    ((theirs, _),) = played_both_ways("train", "solo", 1)
    assert theirs.turns and called == {"127.0.0.1"}


def test_a_split_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(Exception, match="split 'nowhere' does not exist; use one of .*train"):
        list_tasks(UPSTREAM, "nowhere")

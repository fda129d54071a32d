"""What becomes of an episode whose agent, process or server goes away."""

import asyncio

import pytest

from envs.agents import AgentResult, Endpoint
from envs.protocol import EnvironmentFailed
from rl_system.chat.agent import GenerationFailed
from rl_system.endpoint.agent_episode import play_agent
from rl_system.endpoint.record import SessionRecord
from rl_system.records import Ending
from tests.rl_system.algorithms.episodes import TASK
from tests.rl_system.chat.dialogues import limits


class GoneDoor:
    """Of a server that dies while the agent runs."""

    async def open(self) -> Endpoint:
        return Endpoint("http://127.0.0.1:1/v1", "secret")

    async def close(self) -> SessionRecord:
        raise GenerationFailed("the server died")


async def well(endpoint: Endpoint, timeout_s: float) -> AgentResult:
    return AgentResult(1.0)


async def dies(endpoint: Endpoint, timeout_s: float) -> AgentResult:
    raise EnvironmentFailed("the process died")


async def waits(endpoint: Endpoint, timeout_s: float) -> AgentResult:
    await asyncio.sleep(3600)
    return AgentResult(1.0)


@pytest.mark.parametrize("run", [well, dies])
def test_an_episode_whose_server_died_failed_and_has_no_reward(run):
    episode = asyncio.run(play_agent(TASK, 0, 0, run, GoneDoor(), limits()))
    assert (episode.ended, episode.reward) == (Ending.FAILED, 0.0) and "the server died" in episode.failure.what


def test_an_episode_that_is_cancelled_is_cancelled_also_where_its_server_died():
    async def body() -> None:
        playing = asyncio.create_task(play_agent(TASK, 0, 0, waits, GoneDoor(), limits()))
        await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert playing.cancelled()

    asyncio.run(body())

import asyncio
import time

import pytest

from rl_system.chat.clock import EpisodeClock


def test_time_in_which_nobody_could_play_does_not_count() -> None:
    async def scenario() -> float:
        clock, began = EpisodeClock(), time.monotonic()
        with pytest.raises(TimeoutError):
            async with clock.limit(0.3):
                await asyncio.sleep(0.1)
                with clock.stopped():
                    await asyncio.sleep(0.6)
                await asyncio.sleep(10)
        return time.monotonic() - began

    assert 0.85 < asyncio.run(scenario()) < 5


def test_an_episode_that_is_cancelled_while_its_clock_stands_still_is_cancelled() -> None:
    async def scenario() -> None:
        clock = EpisodeClock()

        async def play() -> None:
            async with clock.limit(0.1):
                with clock.stopped():
                    await asyncio.sleep(10)

        playing = asyncio.create_task(play())
        await asyncio.sleep(0.3)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(scenario())


def test_a_clock_that_measures_nothing_may_be_stopped() -> None:
    async def scenario() -> None:
        with EpisodeClock().stopped():
            pass

    asyncio.run(scenario())

"""Losing a part of a run that nobody takes the place of: noticed when it gives no sign of life, and told from other errors.

Whoever asks a dead actor gets an error, and so does a trainer whose neighbour in a collective died, in whatever words its
library has. What is behind an error is therefore not read out of it: all parts are asked for a sign of life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from ray.actor import ActorHandle

from actors.answers import Gone, NoAnswer, answer_to, verdict
from actors.side import last_line
from rl_system.recovery import PartLost

INTERVAL_S = 10.0
SILENCE_S = 120.0
"""A part that gives no sign of life for this long counts as lost, though its process may be there."""
PROBE_S = 10.0
"""The same, where something has gone wrong already."""

Parts = Mapping[str, ActorHandle]
"""The actors that a run cannot go on without, by what people call them."""


async def watch(parts: Callable[[], Parts], interval_s: float = INTERVAL_S, silence_s: float = SILENCE_S) -> NoReturn:
    """Raise PartLost once one of `parts` gives no sign of life. They may change meanwhile."""
    while True:
        await asyncio.sleep(interval_s)
        asked = parts()
        faults = await _faults(asked, silence_s)
        now = parts()
        for part, fault in faults.items():
            if now.get(part) is asked[part]:
                raise PartLost(part, last_line(fault))


async def loss_behind(error: Exception, parts: Parts, limit_s: float = PROBE_S) -> PartLost | None:
    """The loss that `error` comes of; None where nothing was lost."""
    if isinstance(error, PartLost):
        return error
    for part, fault in (await _faults(parts, limit_s)).items():
        return PartLost(part, last_line(fault))
    if any(isinstance(each, Gone | NoAnswer) or verdict(each) is not None for each in _chain(error)):
        return PartLost("an actor, or what it held,", last_line(error))
    return None


async def _faults(parts: Parts, limit_s: float) -> dict[str, Gone | NoAnswer]:
    """Why those that give no sign of life within `limit_s` do not."""
    signs = [answer_to(_sign_of_life(actor), limit_s) for actor in parts.values()]
    answers = await asyncio.gather(*signs, return_exceptions=True)
    return {part: each for part, each in zip(parts, answers, strict=True) if isinstance(each, Gone | NoAnswer)}


def _sign_of_life(actor: ActorHandle):
    """Beside whatever a busy actor does, where it can."""
    return getattr(actor, "sign_of_life", actor.__ray_ready__).remote()


def _chain(error: BaseException | None) -> list[BaseException]:
    """`error` and what it was raised for, also by an actor."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = getattr(error, "cause", None) or error.__cause__
    return chain

"""The nodes of a run: which are fit for it, and what is left of it in their shared memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.answers import FAILED
from actors.engine.run_memory import clear_leftovers
from actors.side import last_line
from rl_system.errors import UserError
from rl_system.machine.fit import Room
from rl_system.shared_files import SharedFiles

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 120.0
"""A node that starts its first worker process, on a busy machine."""
CLEAR_TIMEOUT_S = 30.0
TOLD = 3
"""Nodes that an error tells about."""


def on_node(node: str) -> dict[str, Any]:
    """Options of a task or actor that has to be on `node`, beside its accelerators."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def driver_node() -> str:
    return ray.get_runtime_context().get_node_id()


def addresses() -> dict[str, str]:
    """By node; those that are gone too."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}


class Newcomers:
    """Which of the nodes that join the cluster during a run are fit for it. They are asked beside what goes on."""

    def __init__(self, shared: SharedFiles, room: Room | None = None) -> None:
        """room: that one accelerator of a node may come to need there."""
        self._shared, self._room = shared, room
        self._asked: dict[str, ray.ObjectRef] = {}
        self._known: dict[str, bool] = {}

    def is_fit(self, node: str) -> bool:
        """False as long as the node has not answered. What is wrong with one is told once."""
        if node not in self._known:
            if node not in self._asked:
                self._asked[node] = _examine(node, self._shared, self._room)
            answered, _ = ray.wait([self._asked[node]], timeout=0)
            if not answered:
                return False
            try:
                wrong = ray.get(self._asked.pop(node))
            except FAILED as error:
                wrong = _cannot(error)
            self._known[node] = wrong is None
            if wrong is not None:
                logger.warning("node %s is not taken in: it %s", addresses()[node], wrong)
        return self._known[node]


async def require_fit(nodes: Iterable[str], shared: SharedFiles, rooms: Mapping[str, Room] | None = None) -> None:
    """UserError unless all of `nodes` have what the run needs. rooms: by node; the driver's own is not asked but for one."""
    rooms = rooms or {}
    asked = sorted(set(nodes) - {driver_node()} | rooms.keys())
    found = await asyncio.gather(*(_verdict(_examine(node, shared, rooms.get(node))) for node in asked))
    wrong = [f"node {addresses()[node]} {each}" for node, each in zip(asked, found, strict=True) if each]
    if wrong:
        more = f"; so with {len(wrong) - TOLD} more nodes" if len(wrong) > TOLD else ""
        raise UserError("; ".join(wrong[:TOLD]) + more)


async def clear_memory(nodes: Iterable[str], run: Path) -> None:
    """Remove what the run in directory `run`, whose actors have ended, left in the shared memory of `nodes`."""
    others = set(nodes) - {driver_node()}
    tasks = [_clear.options(**on_node(node)).remote(run) for node in others]
    await asyncio.to_thread(clear_leftovers, run)
    if tasks:
        # A node that is gone took its memory with it.
        done = (asyncio.wait_for(task, CLEAR_TIMEOUT_S) for task in tasks)
        await asyncio.gather(*done, return_exceptions=True)


def _examine(node: str, shared: SharedFiles, room: Room | None) -> ray.ObjectRef:
    return _missing.options(**on_node(node)).remote(shared, room)


async def _verdict(examination: ray.ObjectRef) -> str | None:
    """What is wrong with the node; None: it is fit."""
    try:
        return await asyncio.wait_for(examination, ANSWER_TIMEOUT_S)
    except FAILED as error:
        return _cannot(error)


def _cannot(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"did not start a process within {ANSWER_TIMEOUT_S:g} s"
    return f"cannot run this code ({last_line(error)}); start Ray there from the same environment"


@ray.remote(max_retries=0)
def _missing(shared: SharedFiles, room: Room | None) -> str | None:
    return shared.missing() or (room and room.missing())


@ray.remote(max_retries=0)
def _clear(run: Path) -> None:
    clear_leftovers(run)

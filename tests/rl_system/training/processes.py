"""Runs a function on several ranks, each a real process of its own, and returns what it returned."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

import torch

from rl_system.training.ranks import Ranks, connect_store, host_store

TIMEOUT_S = 300.0
LOOPBACK = "127.0.0.1"


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(ranks, *arguments)` on `size` ranks; results in the order of the ranks. A rank's exception is
    raised."""
    # Forked from a server that has imported everything but computed nothing: cheap as a fork, clean as a spawn.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rl_system.training.checkpoint"])
    answers, meeting = context.Queue(), context.Queue()
    processes = [
        context.Process(target=_run, args=(rank, size, meeting, answers, function, arguments), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        results = dict(answers.get(timeout=TIMEOUT_S) for _ in processes)
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    failures = [each for each in results.values() if isinstance(each, RankFailed)]
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(size)]


class RankFailed(Exception):
    """Carries a rank's traceback."""


def _run(rank: int, size: int, meeting, answers, function: Callable[..., Any], arguments: tuple) -> None:
    torch.set_num_threads(1)
    try:
        if rank == 0:
            store = host_store(LOOPBACK, size, TIMEOUT_S)
            for _ in range(size - 1):
                meeting.put(store.port)
        else:
            store = connect_store(LOOPBACK, meeting.get(timeout=TIMEOUT_S), size, TIMEOUT_S)
        ranks = Ranks.join(rank, size, store, TIMEOUT_S)
        answers.put((rank, function(ranks, *arguments)))
        ranks.barrier()
        ranks.close()
    except BaseException:
        answers.put((rank, RankFailed(traceback.format_exc())))
        raise

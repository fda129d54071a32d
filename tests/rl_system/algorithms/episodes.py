"""Episodes and batches made of random tokens."""

from __future__ import annotations

import numpy as np

from rl_system.records import Ending, Episode, Task, TrainBatch, Turn

TASK = Task("text", "random", "task", "train")


def turn(prompt: list[int], response: list[int], version: int = 0) -> Turn:
    """A turn whose logprobs tell the tokens apart: −token / 1000."""
    ids = np.array(response, np.int32)
    return Turn(
        prompt_ids=np.array(prompt, np.int32),
        response_ids=ids,
        logprobs=(-ids / 1000).astype(np.float32),
        versions=np.full(len(ids), version, np.int32),
        finish_reason="stop",
    )


def episode(
    turns: list[Turn],
    reward: float = 1.0,
    ended: Ending = Ending.AGENT_STOP,
    group_id: int = 0,
    counts: dict[str, int] | None = None,
) -> Episode:
    return Episode(TASK, group_id, 0, turns, [], reward, {}, ended, {}, counts or {})


def random_batch(rng: np.random.Generator, lengths: list[int]) -> TrainBatch:
    """Sequences of `lengths` with about half of their tokens trained; every value random."""
    n = sum(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    trained = rng.random(n) < 0.5
    trained[[start for start, length in zip(offsets[:-1], lengths, strict=True) if length]] = False
    return TrainBatch(
        offsets=offsets,
        token_ids=rng.integers(0, 100, n).astype(np.int32),
        trained=trained,
        behaviour_logprobs=np.where(trained, -rng.random(n), 0).astype(np.float32),
        versions=np.where(trained, rng.integers(0, 5, n), -1).astype(np.int32),
        advantages=np.where(trained, rng.normal(size=n), 0).astype(np.float32),
        weights=trained.astype(np.float64),
        group_ids=np.arange(len(lengths)),
    )

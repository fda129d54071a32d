"""Batches of the shapes that prefix trees have, for tests of trees and executors."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies

from launch.bench.support.tree_files import as_batch
from rl_system.records import TrainBatch

VOCABULARY = 50


def batch_of(sequences: list[list[int]], starts: list[int] | None = None, vocabulary: int = VOCABULARY) -> TrainBatch:
    """Everything but the first token trained, unless `starts` says from where."""
    ids = [np.array(each, np.int32) for each in sequences]
    return as_batch(ids, starts or [1] * len(ids), vocabulary)


def multi_turn(rollouts: int, turns: int, prompt: int = 40, turn: int = 6, seed: int = 0) -> TrainBatch:
    """Combs: every turn branches off the rollout's trunk with an answer that the next turn's prompt does not repeat."""
    random = np.random.default_rng(seed)

    def draw(tokens: int) -> list[int]:
        return random.integers(0, VOCABULARY, tokens).tolist()

    shared = draw(prompt)
    sequences, starts = [], []
    for _ in range(rollouts):
        trunk = shared + draw(3)
        for _ in range(turns):
            starts.append(len(trunk))
            sequences.append(trunk + draw(turn))
            trunk = trunk + draw(turn // 2 + 1)
    return batch_of(sequences, starts)


def nested(depth: int) -> TrainBatch:
    """A fork at every token: sequence `i` leaves the trunk after `i` tokens."""
    return batch_of([[1] * length + [2] for length in range(1, depth)])


EDGE = [
    [3, 1, 4, 1, 5],
    [3, 1, 4, 1, 5],
    [3, 1, 4],
    [3, 1, 4, 1, 5, 9, 2],
    [7],
    [3, 1, 4, 2, 6],
    [3, 2],
    [8, 8, 8],
]
"""A duplicate, prefixes of others, a sequence of one token, a root without sharing."""


@strategies.composite
def random_batches(draw: strategies.DrawFn, most_sequences: int = 8, most_tokens: int = 14) -> TrainBatch:
    """Few distinct tokens, so that prefixes are shared often; any response start."""
    token = strategies.integers(0, 2)
    length = strategies.integers(1, most_tokens)
    sequences = draw(
        strategies.lists(
            length.flatmap(lambda n: strategies.lists(token, min_size=n, max_size=n)), min_size=1, max_size=most_sequences
        )
    )
    starts = [draw(strategies.integers(1, len(each))) for each in sequences]
    return batch_of(sequences, starts)

"""The end-to-end rate of a split, from the capacities of its two sides and how well they overlap.

A pipeline is no faster than either side: `X ≤ G` and `X ≤ T`, in groups a second. How close it comes depends on the
buffer between them, which the staleness bound η sets:

- with η = 0 the sides take turns, `1/X = 1/G + 1/T`;
- with an endless buffer the slower side never waits, `X = min(G, T)`.

Between the two we use the family that contains both, `X = (G^(−1/s) + T^(−1/s))^(−s)`: s = 1 is taking turns, s → 0
is the minimum. `s` is the *friction* of the pipeline. Uneven episodes, waiting for slow groups and batches that fill
up late all raise it, and it is read off a run by asking which s gives the rate that was seen. Its prior is 1/(η + 1).
Friction is what makes the last accelerator of an almost saturated side worth something: under min(G, T) it would be
worth nothing.
"""

from __future__ import annotations

import enum

LEAST_FRICTION = 0.02
MOST_FRICTION = 3.0
"""Above 1 the sides are slower than taking turns: the permits leave both of them idle."""


class Limit(enum.StrEnum):
    """What holds the end-to-end rate down."""

    GENERATION = "generation"
    TRAINING = "training"
    STALENESS = "staleness bound"
    CONCURRENCY = "pool concurrency"
    UNKNOWN = "unknown"


def prior_friction(max_staleness: int) -> float:
    return 1 / (max_staleness + 1)


def end_to_end(generation: float, training: float, friction: float) -> float:
    """Predicted groups/s of a split whose sides have these capacities in groups/s, both > 0."""
    slow, fast = sorted((generation, training))
    # The slower side is taken out of the power, so that a friction near 0 neither overflows nor underflows.
    return slow * (1 + (slow / fast) ** (1 / friction)) ** -friction


def friction_of(rate: float, generation: float, training: float) -> float:
    """The friction at which `end_to_end` gives `rate`, by bisection; the nearest one there is, if none does."""
    low, high = LEAST_FRICTION, MOST_FRICTION
    for _ in range(30):
        middle = (low + high) / 2
        if end_to_end(generation, training, middle) > rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2

"""Seeds of single requests to the sampler, for runs that are to be repeatable.

Invariant: a seed follows from the run's seed and from what is sampled, never from when or where; and no two samples that
are trained on share one, so that no two of them draw the same random numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np


def turn_seeds(run: int, group_id: int, index: int) -> Iterator[int]:
    """Of the turns of episode `index` of a group, in order; each below 2^63. Evaluations have group −1."""
    return (_seed(run, group_id + 1, index, turn) for turn in itertools.count())


def seed_of_rest(seed: int, tokens: int) -> int:
    """Of what is left of a turn whose first `tokens` tokens were sampled with `seed` elsewhere."""
    return _seed(seed, tokens)


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)

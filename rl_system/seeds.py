"""Seeds of single requests to the sampler, for runs that are to be repeatable.

Invariant: a seed follows from the run's seed and from what is sampled, never from when or where; and no two samples that
are trained on share one, so that no two of them draw the same random numbers.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

EVALUATION_GROUP = -1
"""The group of all episodes of evaluations."""


def turn_seed(
    run: int, group_id: int, index: int, prompt_ids: np.ndarray, repeat: int = 0, chosen: int | None = None
) -> int:
    """Of a turn of episode `index` of a group, below 2^63.

    prompt_ids: int32 [prompt]; repeat: how many turns of the episode had this prompt before. chosen: a seed of the agent's
    own, in place of `repeat`: turns that it asks for with one seed and one prompt are the same turn.
    """
    digest = blake2b(np.ascontiguousarray(prompt_ids, np.int32).tobytes(), digest_size=8).digest()
    place = (repeat + 1, 0) if chosen is None else (0, chosen % (1 << 64))
    return _seed(run, group_id + 1, index, int.from_bytes(digest), *place)


def seed_of_rest(seed: int, tokens: int) -> int:
    """Of what is left of a turn whose first `tokens` tokens were sampled with `seed` elsewhere."""
    return _seed(seed, tokens)


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)

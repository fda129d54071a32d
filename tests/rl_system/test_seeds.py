import itertools

import numpy as np

from rl_system.seeds import seed_of_rest, turn_seed

PROMPTS = [np.arange(n, dtype=np.int32) for n in range(1, 5)]


def test_the_seed_of_a_turn_is_the_same_whenever_it_is_asked_for():
    assert turn_seed(3, 7, 1, PROMPTS[0]) == turn_seed(3, 7, 1, PROMPTS[0].astype(np.int64))
    assert turn_seed(3, 7, 1, PROMPTS[0], chosen=5) == turn_seed(3, 7, 1, PROMPTS[0], repeat=2, chosen=5)


def test_no_two_turns_of_any_episodes_and_no_rest_of_one_share_a_seed():
    places = itertools.product(range(2), range(-1, 6), range(4), PROMPTS)
    turns = [turn_seed(*place, **how) for place in places for how in ({}, {"repeat": 1}, {"chosen": 0}, {"chosen": 1})]
    rests = [seed_of_rest(seed, tokens) for seed in turns for tokens in (0, 1, 20)]
    assert len({*turns, *rests}) == len(turns) + len(rests)
    assert all(0 <= seed < 2**63 for seed in (*turns, *rests))

import itertools

from rl_system.seeds import seed_of_rest, turn_seeds


def first(count: int, *episode: int) -> list[int]:
    return list(itertools.islice(turn_seeds(*episode), count))


def test_the_seeds_of_an_episode_are_the_same_whenever_they_are_asked_for():
    assert first(5, 3, 7, 1) == first(5, 3, 7, 1)


def test_no_two_turns_of_any_episodes_and_no_rest_of_one_share_a_seed():
    episodes = itertools.product(range(2), range(-1, 6), range(4))
    turns = [seed for episode in episodes for seed in first(5, *episode)]
    rests = [seed_of_rest(seed, tokens) for seed in turns for tokens in (0, 1, 20)]
    assert len({*turns, *rests}) == len(turns) + len(rests)
    assert all(0 <= seed < 2**63 for seed in (*turns, *rests))

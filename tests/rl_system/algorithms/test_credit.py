import numpy as np
import pytest

from rl_system.algorithms import score_group, shaped_reward
from rl_system.algorithms.credit import turn_advantages
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.tracking.measures import group_metrics
from tests.rl_system.algorithms.episodes import episode, turn


def dialogue(turns: int) -> list[int]:
    """The parents where each turn goes on from the one before."""
    return list(range(-1, turns - 1))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [8, 8, 8, 8]),
        ({"turn_discount": 0.5}, [1, 2, 4, 8]),
        ({"credit": "spread"}, [8, 6, 4, 2]),
        ({"credit": "spread", "turn_discount": 0.5}, [3.75, 3.5, 3, 2]),
    ],
)
def test_turns_are_credited_with_what_is_earned_from_them_on(changes, expected):
    np.testing.assert_allclose(turn_advantages(8.0, dialogue(4), AlgorithmConfig(**changes)), expected, rtol=1e-12)


@pytest.mark.parametrize("credit", ["last", "spread"])
def test_an_episode_of_one_turn_has_its_whole_advantage_there_and_one_of_none_has_nothing(credit):
    config = AlgorithmConfig(credit=credit, turn_discount=0.5)
    assert turn_advantages(3.0, dialogue(1), config).tolist() == [3.0]
    assert turn_advantages(3.0, dialogue(0), config).tolist() == []


def test_credit_reaches_the_tokens_of_every_turn_and_not_of_the_last_one_only():
    turns = [turn([1], [2, 3]), turn([1, 2, 3, 9], [4])]
    members = [episode(turns, 1.0), episode([turn([1], [5])], 0.0)]
    config = AlgorithmConfig(advantage="dr_grpo", turn_discount=0.5)
    sequence = score_group(members, config).sequences[0]
    assert sequence.advantages.tolist() == [0, 0.25, 0.25, 0, 0.5]


@pytest.mark.parametrize(("sampled", "penalty"), [(0, 0), (10, 0), (15, 0.2), (20, 0.4), (30, 0.4)])
def test_the_length_penalty_grows_in_proportion_between_its_bounds(sampled, penalty):
    config = AlgorithmConfig(length_penalty=0.4, length_penalty_start=10, length_penalty_full=20)
    half = sampled // 2
    turns = [turn([1], [2] * half), turn([1], [2] * (sampled - half))]
    assert shaped_reward(episode(turns, 1.0), config) == pytest.approx(1.0 - penalty)


def test_credit_agrees_with_the_sum_that_defines_it_on_random_episodes():
    rng = np.random.default_rng(0)
    for turns in range(1, 9):
        for credit in ("last", "spread"):
            advantage, discount = float(rng.normal()), float(rng.uniform(0.1, 1))
            config = AlgorithmConfig(credit=credit, turn_discount=discount)
            earned = [advantage / turns] * turns if credit == "spread" else [0.0] * (turns - 1) + [advantage]
            expected = [sum(discount ** (j - k) * earned[j] for j in range(k, turns)) for k in range(turns)]
            np.testing.assert_allclose(turn_advantages(advantage, dialogue(turns), config), expected, rtol=1e-12)


def test_what_form_and_length_cost_is_told_beside_the_shaped_reward():
    config = AlgorithmConfig(
        malformed_call_penalty=0.25, length_penalty=0.4, length_penalty_start=0, length_penalty_full=4
    )
    members = [
        episode([turn([1], [2, 3])], 1.0, counts={"malformed_calls": 2}),
        episode([turn([1], [2])], 0.0),
    ]
    group = score_group(members, config)
    np.testing.assert_allclose(group.penalties, [0.5 + 0.2, 0.1], rtol=1e-12)
    np.testing.assert_allclose(group.shaped, [1 - 0.7, -0.1], rtol=1e-12)
    assert group_metrics([group])["reward/penalty_mean"] == pytest.approx(0.4)

import numpy as np
import pytest
from pydantic import ValidationError

from rl_system.algorithms import group_advantages, has_signal, registry, score_group, shaped_reward
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.errors import UserError
from rl_system.records import Ending
from tests.rl_system.algorithms.episodes import episode, turn

REWARDS = [1.0, 0.0, 0.0, 3.0]  # mean 1, sum of squares 6, sample deviation √2
COMPARING = ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", np.array([0, -1, -1, 2]) / (2**0.5 + 1e-6)),
        ("dr_grpo", [0, -1, -1, 2]),
        ("rloo", [0, -4 / 3, -4 / 3, 8 / 3]),
        ("reinforce_pp", REWARDS),
        ("gae", REWARDS),
        ("reinforce_pp_baseline", [0, -1, -1, 2]),
    ],
)
def test_estimators_by_hand(name, expected):
    np.testing.assert_allclose(group_advantages(name, REWARDS), expected, atol=1e-12)


def reference(name: str, rewards: list[float]) -> list[float]:
    """The estimators in plain Python, one member at a time."""
    n = len(rewards)
    mean = sum(rewards) / n
    deviation = (sum((r - mean) ** 2 for r in rewards) / (n - 1)) ** 0.5
    one = {
        "grpo": lambda i: (rewards[i] - mean) / (deviation + 1e-6),
        "dr_grpo": lambda i: rewards[i] - mean,
        "rloo": lambda i: rewards[i] - sum(rewards[:i] + rewards[i + 1 :]) / (n - 1),
        "reinforce_pp": lambda i: rewards[i],
        "gae": lambda i: rewards[i],
        "reinforce_pp_baseline": lambda i: rewards[i] - mean,
    }[name]
    return [one(i) for i in range(n)]


@pytest.mark.parametrize("name", registry.names("advantages"))
def test_estimators_agree_with_a_plain_reference_on_random_groups(name):
    rng = np.random.default_rng(0)
    for size in range(2, 18):
        rewards = (rng.normal(size=size) * 10).tolist()
        np.testing.assert_allclose(group_advantages(name, rewards), reference(name, rewards), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", registry.names("advantages"))
def test_a_failed_member_is_compared_with_nobody_whatever_its_reward(name):
    counts = np.array([True, False, True, True, True])
    got = group_advantages(name, [1.0, np.nan, 0.0, 0.0, 3.0], counts)
    assert got[1] == 0
    np.testing.assert_array_equal(got[counts], group_advantages(name, REWARDS))


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("rewards", [[5.0], [0.3] * 7, [0.1 + 0.2, 0.3, 0.3], []])
def test_a_group_of_one_and_a_group_of_equals_have_no_signal_and_advantages_of_exactly_zero(name, rewards):
    assert not has_signal(name, rewards)
    assert group_advantages(name, rewards).tolist() == [0.0] * len(rewards)


def test_without_comparison_equal_rewards_are_a_signal_but_no_members_are_none():
    assert has_signal("reinforce_pp", [1.0, 1.0])
    assert not has_signal("reinforce_pp", [1.0], np.array([False]))


def test_a_group_where_all_failed_has_no_signal():
    episodes = [episode([turn([1], [2])], reward, ended=Ending.FAILED) for reward in (0.0, 1.0)]
    for name in registry.names("advantages"):
        group = score_group(episodes, AlgorithmConfig(advantage=name))
        assert (group.signal, group.sequences, group.advantages.tolist()) == (False, [], [0.0, 0.0])


def test_an_unknown_estimator_is_refused_with_the_list_of_those_there_are():
    with pytest.raises(UserError, match="algorithm.advantage is 'gpro'.*grpo, .*rloo"):
        group_advantages("gpro", REWARDS)


def test_rewards_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        group_advantages("grpo", [0.0, float("inf")])


def test_episodes_of_two_groups_are_not_compared():
    episodes = [episode([turn([1], [2])], group_id=group_id) for group_id in (0, 1)]
    with pytest.raises(ValueError, match="groups"):
        score_group(episodes, AlgorithmConfig())


def test_the_reward_is_scaled_offset_and_charged_for_malformed_calls():
    config = AlgorithmConfig(reward_scale=10, reward_offset=-0.5, malformed_call_penalty=0.25)
    assert shaped_reward(episode([], 1.0, counts={"malformed_calls": 2}), config) == 10 - 0.5 - 0.5


@pytest.mark.parametrize(("truncated", "expected"), [("as_is", 2.0), ("zero_reward", 1.0), ("mask", 2.0)])
def test_the_reward_of_a_truncated_episode_is_not_taken_for_earned(truncated, expected):
    config = AlgorithmConfig(truncated=truncated, reward_offset=1.0)
    assert shaped_reward(episode([], 1.0, Ending.MAX_TOKENS), config) == expected
    assert shaped_reward(episode([], 1.0, Ending.USER_STOP), config) == 2.0


TREATMENTS = {Ending.MAX_TURNS: "as_is", Ending.TIMEOUT: "mask"}


@pytest.mark.parametrize(
    ("ended", "treatment", "shaped", "trained"),
    [
        (Ending.AGENT_STOP, "as_is", 1.0, True),
        (Ending.USER_STOP, "as_is", 1.0, True),
        (Ending.MAX_TURNS, "as_is", 1.0, True),
        (Ending.MAX_ERRORS, "zero_reward", 0.0, True),
        (Ending.MAX_TOKENS, "zero_reward", 0.0, True),
        (Ending.TIMEOUT, "mask", 1.0, False),
        (Ending.FAILED, "mask", 1.0, False),
    ],
)
def test_every_ending_has_its_own_treatment(ended, treatment, shaped, trained):
    config = AlgorithmConfig(truncated="zero_reward", endings=TREATMENTS, advantage="dr_grpo", drop_zero_signal=False)
    assert config.treatment(ended) == treatment
    group = score_group([episode([turn([1], [2])], 1.0, ended), episode([turn([1], [3])], 0.5)], config)
    assert (group.shaped[0], group.counts[0], len(group.sequences)) == (shaped, trained, 1 + trained)


def test_every_ending_is_treated():
    assert {AlgorithmConfig().treatment(ended) for ended in Ending} == {"as_is", "zero_reward", "mask"}


@pytest.mark.parametrize("ended", [Ending.AGENT_STOP, Ending.USER_STOP, Ending.FAILED])
def test_endings_that_are_no_budget_cannot_be_treated_otherwise(ended):
    with pytest.raises(ValidationError, match=f"algorithm.endings names {ended}.*max_tokens, timeout"):
        AlgorithmConfig(endings={ended: "mask"})


def test_failed_calls_are_charged_whatever_they_failed_of():
    config = AlgorithmConfig(tool_error_penalty=0.1, malformed_call_penalty=0.25)
    counts = {"tool_errors": 3, "malformed_calls": 1}
    assert shaped_reward(episode([], 1.0, counts=counts), config) == pytest.approx(1.0 - 0.3 - 0.25)


def test_a_group_without_signal_gives_no_sequences_unless_such_groups_are_kept():
    episodes = [episode([turn([1], [2])], 1.0) for _ in range(3)]
    assert score_group(episodes, AlgorithmConfig()).sequences == []
    assert len(score_group(episodes, AlgorithmConfig(drop_zero_signal=False)).sequences) == 3


def test_a_masked_member_is_neither_trained_nor_part_of_the_baseline():
    episodes = [
        episode([turn([1], [2])], 1.0),
        episode([turn([1], [3])], 0.0),
        episode([turn([1], [4])], 0.0, Ending.MAX_TOKENS),
    ]
    group = score_group(episodes, AlgorithmConfig(advantage="dr_grpo", truncated="mask"))
    assert group.advantages.tolist() == [0.5, -0.5, 0.0]
    assert [s.token_ids.tolist() for s in group.sequences] == [[1, 2], [1, 3]]
    group = score_group(episodes, AlgorithmConfig(advantage="dr_grpo", truncated="zero_reward"))
    np.testing.assert_allclose(group.advantages, [2 / 3, -1 / 3, -1 / 3])
    assert len(group.sequences) == 3


def test_every_trained_token_of_every_turn_carries_the_advantage_of_its_episode():
    turns = [turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 9], [5])]
    group = score_group([episode(turns, 1.0), episode([turn([1], [2])], 0.0)], AlgorithmConfig(advantage="dr_grpo"))
    trained = [s.advantages[s.trained].tolist() for s in group.sequences]
    assert trained == [[0.5, 0.5], [0.5], [-0.5]]

import pytest

from rl_system.algorithms import registry
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.load import build_config
from rl_system.errors import UserError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--algorithm.advantage", "gpro"], r"algorithm.advantage is 'gpro'.*dr_grpo, gae, grpo"),
        (["--algorithm.objective", "ppo"], r"algorithm.objective is 'ppo'.*decoupled_ppo"),
        (["--algorithm.correction", "is"], r"algorithm.correction is 'is'.*icepop"),
        (["--algorithm.aggregation", "constant"], "algorithm.constant_length is not set"),
        (["--algorithm.kl_coefficient", "0.1", "--algorithm.kl_estimator", "k1"], "algorithm.kl_estimator is 'k1'"),
        (
            ["--algorithm.objective", "sft", "--algorithm.kl_coefficient", "1", "--algorithm.kl_in", "reward"],
            "algorithm.kl_in is 'reward'.*'sft'",
        ),
        (["--algorithm.length_penalty", "1"], "algorithm.length_penalty_full is 0"),
        (["--algorithm.sequence_ratio_low", "1.2"], "algorithm.sequence_ratio_low is 1.2"),
        (["--algorithm.correction", "icepop", "--algorithm.behaviour_cap", "0.4"], "algorithm.behaviour_cap 0.4"),
        (["--algorithm.correction", "icepop", "--algorithm.behaviour_floor", "1.1"], "behaviour_floor is 1.1"),
        (
            ["--algorithm.correction", "sequence_rejection", "--algorithm.sequence_ratio_high", "0.95"],
            "algorithm.sequence_ratio_high 0.95",
        ),
        (["--algorithm.dual_clip", "1.1"], "algorithm.dual_clip is 1.1"),
        (
            ["--algorithm.length_penalty", "1", "--algorithm.length_penalty_start", "9000"]
            + ["--algorithm.length_penalty_full", "9999"],
            "algorithm.length_penalty_start is 9000",
        ),
        (["--algorithm.mask_staleness_above", "2"], "algorithm.mask_staleness_above is 2"),
        (["--algorithm.updates_per_batch", "9"], "algorithm.updates_per_batch is 9"),
        (["--rollout.group_size", "1"], "rollout.group_size is 1"),
        (["--rollout.sampling.temperature", "0"], "rollout.sampling.temperature is 0"),
        (["--rollout.sampling.top_p", "0.9"], "rollout.sampling.top_p is 0.9.*renormalised"),
        (["--rollout.sampling.top_k", "50"], "top_k is 50.*renormalised"),
        (["--algorithm.reward_scale", "0"], "algorithm.reward_scale is 0"),
        (["--algorithm.clip_low", "1.5"], "algorithm.clip_low is 1.5"),
        (["--algorithm.advantage", "gae", "--algorithm.turn_discount", "0.9"], "algorithm.turn_discount is 0.9"),
        (["--algorithm.advantage", "gae", "--algorithm.objective", "sft"], "algorithm.objective 'sft' looks at no"),
        (["--environment.curriculum.enabled", "true", "--environment.shuffle_window", "4"], "shuffle_window is 4"),
        (["--rollout.over_sample", "30"], "environment.concurrency lets only 32 episodes"),
        (["--algorithm.critic.gae_lambda", "1.1"], "algorithm.critic.gae_lambda is 1.1"),
    ],
)
def test_combinations_that_cannot_work_are_refused_by_field_value_and_remedy(overrides, message):
    with pytest.raises(UserError, match=message):
        build_config({"name": "run"}, overrides)


@pytest.mark.parametrize(
    ("advantage", "compares"), [("grpo", True), ("reinforce_pp", False), ("rloo", True), ("gae", False)]
)
def test_the_configuration_knows_whether_an_estimator_compares_members(advantage, compares):
    assert AlgorithmConfig(advantage=advantage).compares_members is compares


def test_every_file_of_a_kind_is_an_implementation_of_its_name():
    for kind in registry.FIELDS:
        assert registry.names(kind)
        for name in registry.names(kind):
            assert registry.find(kind, name).__name__ == name
            assert registry.find(kind, name).__doc__

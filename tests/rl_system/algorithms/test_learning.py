"""Whether the pieces, put together, learn: a sign that is wrong anywhere between reward and gradient fails here."""

import numpy as np
import pytest

from rl_system.algorithms import registry
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.critic import CriticConfig
from tests.rl_system.algorithms.parity import learn

SEEDS = (0, 1, 2)

NAMES = {
    **{name: {"advantage": name} for name in registry.names("advantages")},
    "gae": {"advantage": "gae", "critic": CriticConfig(learning_rate=1e-2)},
    **{name: {"objective": name} for name in registry.names("objectives") if name != "sft"},
    "sft": {"objective": "sft", "drop_zero_signal": False},
}
SETTINGS = {
    **{name: {"correction": name} for name in registry.names("corrections")},
    "two updates a batch": {"updates_per_batch": 2},
    "two updates of GSPO": {"objective": "gspo", "updates_per_batch": 2},
    "loglinear": {"proximal": "loglinear"},
    "Dr. GRPO as published": {"advantage": "dr_grpo", "aggregation": "constant", "constant_length": 4},
    "sequence mean": {"aggregation": "sequence_mean"},
    "spread credit": {"credit": "spread"},
    "discounted turns": {"turn_discount": 0.5},
    "entropy bonus": {"entropy_coefficient": 0.01},
    "KL in the loss": {"kl_coefficient": 0.01},
    "KL in the reward": {"kl_coefficient": 0.01, "kl_in": "reward", "kl_estimator": "k1"},
    "REINFORCE++ as published": {
        "advantage": "reinforce_pp", "objective": "ppo_clip",
        "kl_coefficient": 0.01, "kl_in": "reward", "kl_estimator": "k1",
    },
    "PPO with a critic": {
        "advantage": "gae", "objective": "ppo_clip", "updates_per_batch": 2, "critic": CriticConfig(learning_rate=1e-2),
    },
    "a critic and spread credit": {"advantage": "gae", "credit": "spread", "critic": CriticConfig(learning_rate=1e-2)},
    "staleness mask": {"mask_staleness_above": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_estimator_and_every_objective_raises_the_reward_well_above_the_start(name):
    check_that_it_learns(NAMES[name])


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_raises_the_reward_well_above_the_start(setting):
    check_that_it_learns(SETTINGS[setting])


def check_that_it_learns(changes: dict) -> None:
    runs = np.array([learn(AlgorithmConfig(**changes), seed) for seed in SEEDS])
    gains = runs[:, 1] - runs[:, 0]
    assert gains.mean() > 0.25, runs
    assert gains.min() > 0.05, runs


@pytest.mark.parametrize(
    ("advantage", "objective"),
    [("grpo", "decoupled_ppo"), ("reinforce_pp", "gspo"), ("rloo", "cispo"), ("gae", "ppo_clip")],
)
def test_with_the_sign_of_the_reward_flipped_it_falls(advantage, objective):
    critic = CriticConfig(learning_rate=1e-2)
    config = AlgorithmConfig(advantage=advantage, objective=objective, critic=critic, reward_scale=-1)
    runs = np.array([learn(config, seed) for seed in SEEDS])
    assert (runs[:, 1] < runs[:, 0] - 0.2).all(), runs


def test_a_strong_pull_to_the_reference_holds_the_policy_where_it_started():
    free = np.array([learn(AlgorithmConfig(), seed) for seed in SEEDS])
    held = np.array([learn(AlgorithmConfig(kl_coefficient=10.0, kl_estimator="k2"), seed) for seed in SEEDS])
    assert np.abs(held[:, 1] - held[:, 0]).max() < 0.15 < (free[:, 1] - free[:, 0]).min()


import dataclasses
import math

import numpy as np
import pytest
import torch

from rl_system.algorithms import make_objective, registry
from rl_system.algorithms.policy_objective import select
from rl_system.algorithms.statistics import Statistics
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.errors import UserError
from rl_system.tracking.names import unlisted
from tests.rl_system.algorithms import reference
from tests.rl_system.algorithms.reference import Sample, random_sample

OBJECTIVES = registry.names("objectives")
CORRECTIONS = registry.names("corrections")
VERSION = 4

VARIANTS = {
    **{name: {"objective": name} for name in OBJECTIVES},
    **{f"{name} + {c}": {"objective": name, "correction": c} for name in ("decoupled_ppo", "gspo", "cispo", "reinforce")
       for c in CORRECTIONS},
    "clip-higher": {"objective": "ppo_clip", "clip_low": 0.1, "clip_high": 0.3},
    "dual clip": {"objective": "ppo_clip", "dual_clip": 1.5},
    "loglinear": {"objective": "decoupled_ppo", "proximal": "loglinear"},
    "no cap": {"objective": "decoupled_ppo", "behaviour_cap": None},
    "low cap": {"objective": "reinforce", "behaviour_cap": 1.05},
    "KL k2": {"objective": "ppo_clip", "kl_coefficient": 0.3, "kl_estimator": "k2"},
    "KL k3": {"objective": "reinforce", "kl_coefficient": 0.3, "kl_estimator": "k3"},
    "KL in the reward": {"objective": "ppo_clip", "kl_coefficient": 0.3, "kl_in": "reward"},
    "entropy": {"objective": "gspo", "entropy_coefficient": 0.2},
}  # fmt: skip


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def config(request) -> AlgorithmConfig:
    return AlgorithmConfig(**request.param)


def evaluate(config, current, entropies, pairs, version=VERSION):
    """Loss, gradient [P], statistics."""
    outputs = torch.tensor(current, dtype=torch.float64, requires_grad=True)
    loss, statistics = make_objective(config, version)(outputs, torch.tensor(entropies, dtype=torch.float64), pairs)
    loss.backward()
    return loss.item(), outputs.grad.numpy(), statistics


@pytest.mark.parametrize("carries_proximal", [True, False])
def test_loss_and_gradient_agree_with_a_plain_reference(config, carries_proximal):
    for seed in range(5):
        current, entropies, sample = random_sample(np.random.default_rng(seed))
        if not carries_proximal:
            sample.proximal = None
        loss, gradient, _ = evaluate(config, current, entropies, sample.pairs())
        assert loss == pytest.approx(reference.loss(current, entropies, sample, config, VERSION), rel=1e-12, abs=1e-14)
        numeric = []
        for i in range(len(current)):
            ends = []
            for step in (1e-6, -1e-6):
                moved = list(current)
                moved[i] += step
                ends.append(reference.loss(moved, entropies, sample, config, VERSION, frozen=current))
            numeric.append((ends[0] - ends[1]) / 2e-6)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-9)


def test_pairs_behind_a_mask_leak_nothing_even_where_they_are_not_finite(config):
    current, entropies, sample = random_sample(np.random.default_rng(0))
    masked = [i for i, s in enumerate(sample.sequence) if s == sample.sequence[0]]
    live = [i for i in range(len(current)) if i not in masked]
    expected = evaluate(
        config, [current[i] for i in live], [entropies[i] for i in live], select(sample.pairs(), torch.tensor(live))
    )
    for i, poison in zip(masked, (math.nan, math.inf, -math.inf, 1e308) * 10, strict=False):
        sample.weight[i] = 0.0
        current[i] = entropies[i] = poison
        sample.behaviour[i] = sample.advantage[i] = sample.proximal[i] = sample.reference[i] = poison
    loss, gradient, statistics = evaluate(config, current, entropies, sample.pairs())
    assert loss == expected[0]
    np.testing.assert_array_equal(gradient[live], expected[1])
    assert (gradient[masked] == 0).all()
    assert statistics.values() == expected[2].values()


def test_a_broken_logprob_that_is_not_masked_shows_in_the_loss(config):
    current, entropies, sample = random_sample(np.random.default_rng(0))
    current[3] = math.nan
    assert math.isnan(evaluate(config, current, entropies, sample.pairs())[0])


def test_the_order_of_pairs_and_the_numbering_of_sequences_do_not_matter(config):
    current, entropies, sample = random_sample(np.random.default_rng(1))
    loss, gradient, statistics = evaluate(config, current, entropies, sample.pairs())
    order = np.random.default_rng(2).permutation(len(current))
    pairs = select(sample.pairs(), torch.from_numpy(order))
    pairs = dataclasses.replace(pairs, sequence=1000 - pairs.sequence)
    moved = evaluate(config, np.array(current)[order], np.array(entropies)[order], pairs)
    assert moved[0] == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(moved[1], gradient[order], rtol=1e-12)
    assert moved[2].values() == pytest.approx(statistics.values(), rel=1e-12)


def test_losses_statistics_and_gradients_add_up_over_any_cut_that_the_objective_allows(config):
    current, entropies, sample = random_sample(np.random.default_rng(3), sequences=6, pairs=40)
    loss, gradient, statistics = evaluate(config, current, entropies, sample.pairs())
    rng = np.random.default_rng(4)
    part_of_sequence = {s: int(rng.integers(0, 3)) for s in set(sample.sequence)}
    coupled = make_objective(config, VERSION).coupled
    part = [part_of_sequence[s] if coupled else int(rng.integers(0, 3)) for s in sample.sequence]
    total, merged, gathered = 0.0, Statistics(), np.zeros(len(current))
    for k in (2, 0, 1, 3):  # part 3 is empty
        rows = np.flatnonzero(np.array(part) == k)
        pairs = select(sample.pairs(), torch.from_numpy(rows))
        got = evaluate(config, np.array(current)[rows], np.array(entropies)[rows], pairs)
        total += got[0]
        gathered[rows] = got[1]
        merged.merge(got[2])
    assert total == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(gathered, gradient, rtol=1e-12)
    assert merged.values() == pytest.approx(statistics.values(), rel=1e-12)


def test_every_metric_is_listed(config):
    current, entropies, sample = random_sample(np.random.default_rng(5))
    names = evaluate(config, current, entropies, sample.pairs())[2].values()
    assert unlisted(names) == []
    assert "train/entropy" in names


# By hand: one sequence, two tokens, π_behave = ½, π_θ = ¾ and ¼, so that ratios are 3/2 and ½.
HAND = Sample(
    sequence=[0, 0],
    behaviour=[math.log(0.5)] * 2,
    advantage=[1.0, -2.0],
    weight=[0.5, 0.5],
    version=[0, 0],
    reference=[math.log(0.5)] * 2,
)
CURRENT = [math.log(0.75), math.log(0.25)]
RATIO = math.sqrt(0.75)  # geometric mean of 3/2 and ½

BY_HAND = {
    # −½ (min(1.5, 1.2)·1 + min(0.5·−2, 0.8·−2))
    "ppo_clip": ({}, -0.5 * (1.2 - 1.6)),
    # a negative advantage is held at dual_clip·A only where the ratio is large, which 0.5 is not
    "ppo_clip with dual clip": ({"objective": "ppo_clip", "dual_clip": 3.0}, -0.5 * (1.2 - 1.6)),
    # the proximal policy is the current one: ratio 1, weighted by 1.5 and 0.5
    "decoupled_ppo": ({}, -0.5 * (1.5 * 1 + 0.5 * -2)),
    "decoupled_ppo with cap": ({"objective": "decoupled_ppo", "behaviour_cap": 1.25}, -0.5 * (1.25 * 1 + 0.5 * -2)),
    "decoupled_ppo masked": (
        {"objective": "decoupled_ppo", "correction": "icepop", "behaviour_floor": 0.6, "behaviour_cap": 2.0},
        -0.5 * 1.5,
    ),
    "decoupled_ppo rejected": ({"objective": "decoupled_ppo", "correction": "sequence_rejection"}, 0.0),
    "decoupled_ppo kept": (
        {"objective": "decoupled_ppo", "correction": "sequence_rejection", "sequence_ratio_low": 0.8},
        -0.5 * (1.5 * 1 + 0.5 * -2),
    ),
    "reinforce": ({"correction": "none"}, -0.5 * (CURRENT[0] - 2 * CURRENT[1])),
    "cispo": ({}, -0.5 * (1.2 * CURRENT[0] - 2 * 0.8 * CURRENT[1])),
    "gspo": ({}, -0.5 * (RATIO - 2 * RATIO)),
    "sft": ({}, -0.5 * (CURRENT[0] + CURRENT[1])),
    "sft with k2": (
        {"objective": "sft", "kl_coefficient": 2.0, "kl_estimator": "k2"},
        -0.5 * (CURRENT[0] + CURRENT[1]) + 0.5 * (math.log(1.5) ** 2 + math.log(0.5) ** 2),
    ),
    "sft with k3": (
        {"objective": "sft", "kl_coefficient": 2.0, "kl_estimator": "k3"},
        -0.5 * (CURRENT[0] + CURRENT[1]) + (1 / 1.5 - 1 + math.log(1.5)) + (2 - 1 + math.log(0.5)),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_objectives_by_hand(name):
    changes, expected = BY_HAND[name]
    config = AlgorithmConfig(**({"objective": name} | changes))
    assert evaluate(config, CURRENT, [0.0, 0.0], HAND.pairs())[0] == pytest.approx(expected, rel=1e-12)


def test_every_objective_and_every_correction_has_an_example_by_hand():
    configs = [AlgorithmConfig(**({"objective": name} | changes)) for name, (changes, _) in BY_HAND.items()]
    assert {config.objective for config in configs} == set(OBJECTIVES)
    assert {config.correction for config in configs} == set(CORRECTIONS)


def test_the_dual_clip_bounds_the_loss_of_a_bad_action_that_became_likelier():
    sample = Sample([0], [math.log(0.01)], [-1.0], [1.0], [0])
    free = AlgorithmConfig(objective="ppo_clip")
    assert evaluate(free, [math.log(0.5)], [0.0], sample.pairs())[0] == pytest.approx(50.0)
    held = AlgorithmConfig(objective="ppo_clip", dual_clip=3.0)
    loss, gradient, statistics = evaluate(held, [math.log(0.5)], [0.0], sample.pairs())
    assert (loss, gradient.tolist()) == (3.0, [0.0])
    assert statistics.values()["train/dual_clip_fraction"] == 1.0


def test_metrics_by_hand():
    values = evaluate(AlgorithmConfig(objective="ppo_clip"), CURRENT, [0.2, 0.4], HAND.pairs())[2].values()
    expected = {
        "train/ratio_mean": 1.0,
        "train/ratio_max": 1.5,
        "train/approx_kl": (0.5 - math.log(1.5) - 0.5 - math.log(0.5)) / 2,
        "train/clip_fraction": 1.0,
        "train/entropy": 0.3,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    config = AlgorithmConfig(objective="decoupled_ppo", behaviour_cap=1.25)
    values = evaluate(config, CURRENT, [0.2, 0.4], HAND.pairs())[2].values()
    expected = {
        "train/ratio_mean": 1.0,
        "train/clip_fraction": 0.0,
        "off_policy/behaviour_ratio_mean": 1.0,
        "off_policy/behaviour_ratio_max": 1.5,
        "off_policy/capped_fraction": 0.5,
        "off_policy/masked_fraction": 0.0,
        "off_policy/effective_sample_size": 1.75**2 / (2 * (1.25**2 + 0.25)),
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_on_policy_every_policy_gradient_objective_has_the_gradient_of_reinforce():
    current, entropies, sample = random_sample(np.random.default_rng(6))
    sample.behaviour, sample.proximal = current, None
    expected = -np.array(sample.weight) * np.array(sample.advantage)
    for name in set(OBJECTIVES) - {"sft", "gspo"}:
        gradient = evaluate(AlgorithmConfig(objective=name), current, entropies, sample.pairs())[1]
        np.testing.assert_allclose(gradient, expected, rtol=1e-12)


def test_decoupled_ppo_keeps_teaching_with_stale_tokens_that_plain_ppo_clips_away():
    sample = Sample([0], [math.log(0.1)], [1.0], [1.0], [0])
    current = [math.log(0.3)]
    assert evaluate(AlgorithmConfig(objective="ppo_clip"), current, [0.0], sample.pairs())[1].tolist() == [0.0]
    decoupled = AlgorithmConfig(objective="decoupled_ppo")
    assert evaluate(decoupled, current, [0.0], sample.pairs())[1] == pytest.approx([-3.0])


def test_a_batch_without_a_live_pair_has_loss_zero_and_no_metric_of_zero_pairs(config):
    current, entropies, sample = random_sample(np.random.default_rng(7))
    sample.weight = [0.0] * len(current)
    loss, gradient, statistics = evaluate(config, current, entropies, sample.pairs())
    assert (loss, np.abs(gradient).max(), statistics.values()) == (0.0, 0.0, {})


def test_extreme_ratios_stay_finite_and_a_mask_hides_them():
    sample = Sample([0], [-800.0], [-1.0], [1.0], [0])
    for name in set(OBJECTIVES) - {"sft"}:
        loss, gradient, _ = evaluate(AlgorithmConfig(objective=name), [-0.1], [0.0], sample.pairs())
        assert math.isfinite(loss)
        assert np.isfinite(gradient).all()
        masked = AlgorithmConfig(objective=name, correction="icepop")
        assert evaluate(masked, [-0.1], [0.0], sample.pairs())[0] == 0.0


def test_float32_pairs_give_a_float32_loss():
    current, entropies, sample = random_sample(np.random.default_rng(8))
    outputs = torch.tensor(current, dtype=torch.float32, requires_grad=True)
    for name in OBJECTIVES:
        objective = make_objective(AlgorithmConfig(objective=name))
        loss, _ = objective(outputs, torch.tensor(entropies, dtype=torch.float32), sample.pairs(torch.float32))
        assert loss.dtype == torch.float32


def test_unknown_names_are_refused_with_the_list_of_those_there_are():
    config = AlgorithmConfig.model_construct(**(AlgorithmConfig().model_dump() | {"objective": "pppo"}))
    with pytest.raises(UserError, match="algorithm.objective is 'pppo'.*decoupled_ppo, .*ppo_clip"):
        make_objective(config)


def test_what_an_objective_needs_and_was_not_given_is_named():
    _, entropies, sample = random_sample(np.random.default_rng(9))
    sample.reference = None
    outputs = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="reference logprobs"):
        make_objective(AlgorithmConfig(kl_coefficient=0.1, measure_entropy=False))(outputs, None, sample.pairs())
    with pytest.raises(ValueError, match="entropies"):
        make_objective(AlgorithmConfig(entropy_coefficient=0.1))(outputs, None, sample.pairs())
    with pytest.raises(ValueError, match="policy version"):
        evaluate(AlgorithmConfig(proximal="loglinear"), [0.0] * 30, entropies, sample.pairs(), version=None)


def test_whether_an_objective_is_coupled_follows_from_its_parts():
    def coupled(**changes) -> bool:
        return make_objective(AlgorithmConfig(**changes)).coupled

    assert coupled(objective="gspo")
    assert not coupled(objective="ppo_clip")
    assert coupled(objective="ppo_clip", correction="sequence_rejection")
    assert not coupled(objective="sft", correction="sequence_rejection")

import json

import numpy as np
import pytest

from rl_system.algorithms.curriculum import Curriculum
from rl_system.config.curriculum import CurriculumConfig
from rl_system.tracking.names import unlisted


def curriculum(count: int, seed: int = 0, **changes) -> Curriculum:
    return Curriculum(count, seed, CurriculumConfig(enabled=True, **changes))


def test_weights_by_hand():
    order = curriculum(3, uniform_share=0.3)
    order.observe(0, solved=8, episodes=8)  # (8 + 1) / (8 + 2) = 0.9
    order.observe(1, solved=4, episodes=8)  # 0.5, as is the task that was never seen
    np.testing.assert_allclose(order.success_rates(), [0.9, 0.5, 0.5], rtol=1e-12)
    expected = 0.7 * np.array([0.09, 0.25, 0.25]) / 0.59 + 0.1
    np.testing.assert_allclose(order.probabilities(), expected, rtol=1e-12)


def test_old_outcomes_fade_with_every_group_of_their_task():
    order = curriculum(2, memory=0.5)
    order.observe(0, solved=4, episodes=4)
    order.observe(0, solved=0, episodes=4)
    assert (order.solved[0], order.failed[0]) == (2.0, 4.0)
    assert (order.solved[1], order.failed[1]) == (0.0, 0.0)


def test_tasks_are_drawn_as_often_as_their_probability_says():
    order = curriculum(4, seed=3)
    order.observe(0, 8, 8)
    order.observe(1, 0, 8)
    order.observe(2, 4, 8)
    share = np.bincount([order.next() for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(share, order.probabilities(), atol=0.03)
    assert share[2] > 2 * share[0]


def test_no_task_starves_however_certain_its_outcome():
    order = curriculum(5, uniform_share=0.2)
    for _ in range(200):
        order.observe(0, 8, 8)
        order.observe(1, 0, 8)
    probabilities = order.probabilities()
    assert probabilities.min() >= 0.2 / 5 and probabilities.sum() == pytest.approx(1, rel=1e-12)


def test_a_policy_that_improves_moves_the_draw_from_easy_to_hard_tasks():
    """Task `i` is solved with a probability that rises with skill and falls with `i`."""
    order, rng = curriculum(20, seed=1), np.random.default_rng(2)

    def mean_drawn(skill: float, draws: int) -> float:
        drawn = []
        for _ in range(draws):
            task = order.next()
            drawn.append(task)
            order.observe(task, rng.binomial(8, 1 / (1 + np.exp(task - skill))), 8)
        return float(np.mean(drawn[draws // 2 :]))

    assert mean_drawn(4.0, 1500) + 4 < mean_drawn(15.0, 1500)


def test_a_restored_curriculum_goes_on_with_the_same_draws():
    order = curriculum(6, seed=4)
    for _ in range(9):
        order.observe(order.next(), 3, 8)
    resumed = curriculum(6, seed=4)
    resumed.restore(json.loads(json.dumps(order.state())))
    assert [resumed.next() for _ in range(20)] == [order.next() for _ in range(20)]
    np.testing.assert_array_equal(resumed.probabilities(), order.probabilities())


def test_outcomes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="3 of 2"):
        curriculum(2).observe(0, 3, 2)


def test_metrics_tell_what_is_known_and_how_narrow_the_draw_has_become():
    order = curriculum(4, uniform_share=0.01)
    fresh = order.metrics()
    assert fresh["rollout/curriculum_seen_share"] == 0
    assert fresh["rollout/curriculum_effective_tasks"] == pytest.approx(4)
    for _ in range(50):
        for task, solved in ((0, 8), (1, 8), (2, 0), (3, 4)):
            order.observe(task, solved, 8)
    known = order.metrics()
    assert known["rollout/curriculum_seen_share"] == 1
    assert known["rollout/curriculum_effective_tasks"] < 2
    assert known["rollout/curriculum_success_mean"] == pytest.approx(0.625, abs=0.02)
    assert known["rollout/curriculum_success_next"] == pytest.approx(0.5, abs=0.05)
    assert unlisted(known) == []

import pytest

from rl_system.config.checkpoint import CheckpointConfig
from rl_system.config.evaluation import EvaluationConfig


@pytest.mark.parametrize(
    ("every", "steps", "saved"),
    [(2, 2, [2]), (2, 5, [2, 4, 5]), (0, 3, [3]), (10, 3, [3]), (1, 3, [1, 2, 3]), (3, 6, [3, 6])],
)
def test_a_step_is_saved_once_and_the_last_one_always(every, steps, saved):
    config = CheckpointConfig(every=every)
    assert [step for step in range(steps + 1) if config.due(step, steps)] == saved


@pytest.mark.parametrize(
    ("keys", "steps", "evaluated"),
    [
        ({"every": 2}, 4, [0, 2, 4]),
        ({"every": 2, "after": False}, 4, [0, 2, 4]),
        ({"every": 2, "before": False}, 5, [2, 4, 5]),
        ({"every": 0}, 3, [0, 3]),
        ({"every": 0, "before": False, "after": False}, 3, []),
        ({"every": 5, "before": False, "after": False}, 3, []),
    ],
)
def test_a_policy_is_evaluated_once_also_where_the_last_step_is_one_of_every_few(keys, steps, evaluated):
    config = EvaluationConfig(**keys)
    assert [step for step in range(steps + 1) if config.due(step, steps)] == evaluated


def test_a_run_that_has_done_more_steps_than_it_is_asked_for_is_saved_and_not_evaluated_again():
    assert CheckpointConfig(every=0).due(7, 5)
    assert not EvaluationConfig(every=0).due(7, 5)

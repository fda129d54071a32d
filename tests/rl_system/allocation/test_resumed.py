import pytest

from rl_system.allocation.observation import Split
from rl_system.allocation.resumed import split_state, start_split
from rl_system.config.allocation import AllocationConfig

THEN = AllocationConfig(rollout=3, trainer=1)


def test_a_resumed_run_starts_at_the_split_of_its_checkpoint():
    state = {"split": split_state(Split(2, 2), THEN)}
    assert start_split(THEN, state) == (Split(2, 2), "as at the checkpoint; configured are 3 rollout + 1 training")


@pytest.mark.parametrize("state", [None, {}])
def test_a_run_without_a_checkpoint_of_a_split_starts_as_configured(state):
    assert start_split(THEN, state) == (Split(3, 1), "as configured")


@pytest.mark.parametrize(
    "now, then, reason",
    [
        (Split(2, 2), AllocationConfig(rollout=1, trainer=3), "configured anew, instead of 3 rollout"),
        (Split(3, 2), THEN, "5 accelerators instead of 4"),
        (Split(2, 2), AllocationConfig(rollout=3, trainer=1, min_rollout=3), "outside allocation.min_rollout 3"),
    ],
)
def test_a_split_that_does_not_fit_any_more_is_left_with_the_reason(now, then, reason):
    split, why = start_split(then, {"split": split_state(now, THEN)})
    assert split == then.start and reason in why and str(now) in why

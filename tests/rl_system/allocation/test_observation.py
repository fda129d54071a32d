import math

import pytest

from rl_system.allocation.observation import RolloutSide, Split, TrainerSide


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
@pytest.mark.parametrize("name", ["idle", "waiting", "tool_share"])
def test_a_share_outside_zero_and_one_is_refused(name, share):
    with pytest.raises(ValueError, match=rf"rollout\.{name} is .* a share between 0 and 1"):
        RolloutSide(1, 1.0, 100.0, **{name: share})


@pytest.mark.parametrize("rate", [-1.0, math.inf, math.nan])
def test_a_rate_that_no_side_can_have_is_refused(rate):
    with pytest.raises(ValueError, match=r"trainer\.groups_per_s"):
        TrainerSide(1, rate, 100.0, 1.0)


def test_a_side_without_accelerators_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        RolloutSide(0, 1.0, 100.0)


def test_a_tree_with_more_tokens_than_its_sequences_is_refused():
    with pytest.raises(ValueError, match="compression"):
        TrainerSide(1, 1.0, 100.0, 1.0, compression=0.5)


def test_a_split_reads_as_words():
    assert str(Split(5, 3)) == "5 rollout + 3 training"

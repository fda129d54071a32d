import pytest

from rl_system.allocation.observation import Split
from rl_system.config.allocation import AllocationConfig
from rl_system.config.load import build_config
from rl_system.errors import UserError


def test_a_split_that_stays_is_the_only_one_that_is_reached():
    assert AllocationConfig(rollout=3, trainer=2, mode="advise").reachable == [Split(3, 2)]


def test_a_run_that_moves_accelerators_reaches_every_split_within_its_bounds():
    config = AllocationConfig(rollout=3, trainer=2, mode="auto", min_rollout=2)
    assert config.reachable == [Split(2, 3), Split(3, 2), Split(4, 1)]


def test_a_run_that_is_to_move_accelerators_and_has_none_to_spare_is_refused_with_its_bounds():
    allocation = {"mode": "auto", "rollout": 2, "min_rollout": 2}
    with pytest.raises(UserError, match=r"allocation\.mode is 'auto'.*of 3 accelerators.*keeps 2.*none to move"):
        build_config({"name": "a", "allocation": allocation})

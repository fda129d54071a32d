from pathlib import Path

import pytest

from rl_system.allocation.observation import Split
from rl_system.config.allocation import AllocationConfig
from rl_system.config.load import build_config, load_config
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


SHARED = {"trainer": 4, "tensor_parallel": 2, "mode": "off"}


def test_trainers_that_share_a_model_make_whole_copies():
    assert AllocationConfig(**SHARED).copies == 2
    with pytest.raises(UserError, match=r"allocation\.tensor_parallel is 3, which does not divide allocation\.trainer 4"):
        build_config({"name": "a", "allocation": SHARED | {"tensor_parallel": 3}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"allocation": SHARED | {"mode": "advise"}, "executor": {"method": "tree"}}, r"allocation\.mode 'advise'.*use 'off'"),
        ({"allocation": SHARED}, r"executor\.method is 'auto'.*allocation\.tensor_parallel is 2.*use 'tree'"),
        (
            {"allocation": SHARED, "executor": {"method": "tree"}, "weights": {"transport": "gloo"}},
            r"weights\.transport is 'gloo'.*no trainer has the whole model",
        ),
    ],
)
def test_what_needs_a_whole_model_on_every_trainer_or_a_split_that_moves_is_refused_where_it_is_shared(values, message):
    with pytest.raises(UserError, match=message):
        build_config({"name": "a"} | values)


def test_the_example_that_moves_accelerators_starts_from_the_default_runs_warm_start():
    """All that the name of a warm-started model in the cache is made from."""
    configs = Path(__file__).parents[3] / "configs"
    default, example = (load_config(configs / f"{name}.yaml", []) for name in ("tau2_mock_cpu", "rebalance_mock_cpu"))
    assert example.warm_start == default.warm_start and example.model == default.model
    assert example.rollout.sampling == default.rollout.sampling
    assert example.rollout.max_episode_tokens == default.rollout.max_episode_tokens
    for name in ("name", "domain", "split", "user", "max_turns", "max_errors"):
        assert getattr(example.environment, name) == getattr(default.environment, name)


def test_a_run_that_keeps_its_split_cannot_be_elastic():
    with pytest.raises(UserError, match=r"allocation\.elastic is true, but allocation\.mode is 'off'"):
        build_config({"name": "a", "allocation": {"mode": "off", "elastic": True}})


def test_an_engine_that_would_need_more_than_a_workers_one_accelerator_is_refused():
    with pytest.raises(UserError, match=r"rollout\.engine\.tensor_parallel is 2.*one accelerator.*use 1"):
        build_config({"name": "a", "rollout": {"engine": {"tensor_parallel": 2}}})

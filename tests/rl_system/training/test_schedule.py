import pytest

from rl_system.config.optimizer import OptimizerConfig
from rl_system.training.schedule import learning_rate


def config(**keys) -> OptimizerConfig:
    return OptimizerConfig(learning_rate=1.0, **keys)


def test_warm_up_rises_linearly_and_peaks_with_its_last_update():
    rates = [learning_rate(config(warmup_steps=4), update, 10) for update in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_starts_at_the_peak_and_ends_at_the_floor_with_the_last_update(decay):
    chosen = config(warmup_steps=2, decay=decay, min_learning_rate_ratio=0.1)
    rates = [learning_rate(chosen, update, 12) for update in range(15)]
    assert rates[1] == rates[2] == 1.0
    assert rates[11] == pytest.approx(0.1) and rates[14] == pytest.approx(0.1)
    assert all(later < earlier for earlier, later in zip(rates[2:11], rates[3:12], strict=True))


def test_linear_decay_is_halfway_down_in_the_middle():
    assert learning_rate(config(decay="linear", min_learning_rate_ratio=0.0), 5, 11) == pytest.approx(0.5)


def test_a_run_of_one_update_uses_the_peak():
    assert learning_rate(config(decay="cosine"), 0, 1) == 1.0

from dataclasses import replace

import numpy as np
import pytest

from rl_system.allocation.comparison import STRETCH, compare, mean_rate, oracle_rate, static_rollouts
from rl_system.allocation.observation import Split
from rl_system.allocation.simulator import SimulationResult
from rl_system.allocation.simulator.result import StepRow
from rl_system.allocation.workloads import drifting, grid, stationary


def result(step_s: list[float]) -> SimulationResult:
    rows = [StepRow(float(end), Split(1, 1), 0.0, 0.0, 0.0, 0) for end in np.cumsum(step_s)]
    return SimulationResult(10, rows)


def test_the_oracle_takes_the_faster_split_of_every_stretch():
    early, late = [1.0] * STRETCH + [3.0] * STRETCH, [2.0] * STRETCH + [1.0] * STRETCH
    assert oracle_rate([[result(early)], [result(late)]], 0) == pytest.approx(10.0)
    assert oracle_rate([[result(early)]], STRETCH) == pytest.approx(10 / 3)


def test_the_oracle_does_not_take_a_split_for_the_luck_of_one_seed():
    lucky, unlucky = [1.0] * STRETCH, [3.0] * STRETCH
    even = [[result(lucky), result(unlucky)], [result(unlucky), result(lucky)]]
    assert oracle_rate(even, 0) == pytest.approx(10 / 2) == mean_rate(even[0])


def test_static_splits_of_a_large_cluster_reach_from_end_to_end():
    assert static_rollouts(8) == [1, 2, 3, 4, 5, 6, 7]
    large = static_rollouts(1024)
    assert len(large) == 15 and (large[0], large[-1]) == (1, 1023)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", stationary(), ids=lambda case: case.name)
def test_auto_reaches_95_per_cent_of_the_best_static_split_of_a_stationary_load_from_any_start(case):
    seen = compare(case)
    assert seen.against_static >= 0.95
    assert seen.moves_per_100 <= case.accelerators and seen.turns_per_100 <= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", drifting(), ids=lambda case: case.name)
def test_auto_beats_every_static_split_of_a_drifting_load_by_a_tenth(case):
    seen = compare(case)
    assert seen.against_static >= 1.1
    assert seen.moves_per_100 <= 10 and seen.turns_per_100 <= 3


def test_a_short_comparison_knows_its_strategies():
    case = replace(drifting()[2], steps=60)
    seen = compare(case)
    assert seen.worst_static < seen.static <= seen.oracle * 1.001
    assert seen.lending > 0 and seen.auto > 0 and len(seen.ends) == 3


def test_the_grid_names_its_workloads_once():
    names = [case.name for case in grid()]
    assert len(names) == len(set(names)) >= 12

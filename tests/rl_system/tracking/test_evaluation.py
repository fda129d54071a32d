import itertools

import pytest

from rl_system.records import Ending, Episode, Task
from rl_system.tracking.evaluation import evaluation_metrics, pass_hat


def episode(task: str, reward: float, ended: Ending = Ending.AGENT_STOP) -> Episode:
    return Episode(Task("tau2", "mock", task, "test"), -1, 0, [], [], reward, {}, ended)


def test_pass_hat_is_the_share_of_all_choices_of_k_trials_that_all_succeed():
    for trials in range(1, 6):
        for successes in range(trials + 1):
            outcomes = [True] * successes + [False] * (trials - successes)
            for k in range(1, trials + 1):
                choices = [all(choice) for choice in itertools.combinations(outcomes, k)]
                assert pass_hat(successes, trials, k) == pytest.approx(sum(choices) / len(choices))


def test_success_rate_and_pass_k_are_means_over_tasks():
    metrics = evaluation_metrics([episode("a", 1), episode("a", 1), episode("b", 1), episode("b", 0)])
    assert metrics["eval/success_rate"] == 0.75
    assert metrics["eval/pass/1"] == 0.75 and metrics["eval/pass/2"] == 0.5


def test_a_failed_episode_counts_as_unsolved_and_is_reported():
    metrics = evaluation_metrics([episode("a", 1), episode("b", 0, Ending.FAILED)])
    assert metrics["eval/success_rate"] == 0.5 and metrics["eval/failed_share"] == 0.5

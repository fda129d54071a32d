import numpy as np
import pytest

from rl_system.algorithms import score_group
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import Ending, TrainBatch
from rl_system.tracking.measures import episode_metrics, group_metrics, staleness_metrics
from rl_system.tracking.names import unlisted
from tests.rl_system.algorithms.episodes import episode, turn


def test_failed_episodes_count_as_lost_and_nowhere_else():
    good = episode([turn([1], [2, 3]), turn([1, 2, 3], [4])], 1.0, counts={"tool_calls": 2, "tool_errors": 1})
    bad = episode([turn([1], [2])], 0.0, Ending.MAX_TOKENS)
    lost = episode([turn([1], [2] * 50)], 1.0, Ending.FAILED)
    good.timings["total"] = 4.0
    good.reward_parts["db"] = 1.0
    metrics = episode_metrics([good, bad, lost])
    assert unlisted(metrics) == []
    expected = {
        "rollout/episodes": 3,
        "rollout/failed_share": 1 / 3,
        "reward/mean": 0.5,
        "reward/success_rate": 0.5,
        "rollout/truncated_share": 0.5,
        "rollout/ended/max_tokens": 0.5,
        "rollout/turns_mean": 1.5,
        "rollout/response_tokens_mean": 4 / 3,
        "rollout/episode_tokens_mean": 2.0,
        "rollout/sequence_tokens_max": 4,
        "rollout/tool_errors_mean": 0.5,
        "rollout/episode_s_mean": 4.0,
        "reward/part/db": 1.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert episode_metrics([lost]) == {"rollout/episodes": 1.0, "rollout/failed_share": 1.0}


def test_what_few_runs_count_is_reported_where_some_episode_counted_it():
    plain = episode([turn([1], [2])])
    talked = episode([turn([1], [2])], counts={"user_requests": 4, "evaluator_errors": 1})
    assert "rollout/user_requests_mean" not in episode_metrics([plain])
    metrics = episode_metrics([plain, talked])
    assert (metrics["rollout/user_requests_mean"], metrics["rollout/evaluator_errors_mean"]) == (2.0, 0.5)
    assert "rollout/user_retries_mean" not in metrics and unlisted(metrics) == []


def test_dropped_groups_count_in_the_mean_reward_but_not_in_the_trained_one():
    def group(rewards):
        return score_group([episode([turn([1], [2])], reward) for reward in rewards], AlgorithmConfig())

    metrics = group_metrics([group([1.0, 0.0]), group([1.0, 1.0]), group([0.0, 0.0])])
    assert unlisted(metrics) == []
    assert (metrics["reward/groups"], metrics["reward/dropped_groups"]) == (3, 2)
    assert metrics["reward/trained_mean"] == 0.5
    assert metrics["reward/group_std"] == pytest.approx(0.5 / 3)
    assert group_metrics([]) == {}


def test_staleness_is_measured_on_trained_tokens_only():
    group = score_group(
        [episode([turn([1], [2, 3], version=3)], 1.0), episode([turn([1], [4], version=5)], 0.0)], AlgorithmConfig()
    )
    batch = TrainBatch.of(group.sequences)
    assert staleness_metrics(batch, 5) == {
        "off_policy/stale_fraction": 0,
        "off_policy/staleness_mean": pytest.approx(4 / 3),
        "off_policy/staleness_max": 2,
    }
    batch.weights[:3] = 0
    assert staleness_metrics(batch, 5) == {
        "off_policy/stale_fraction": pytest.approx(2 / 3),
        "off_policy/staleness_mean": 0,
        "off_policy/staleness_max": 0,
    }
    batch.trained[:] = False
    assert staleness_metrics(batch, 5) == {}
    assert np.min(batch.versions) == -1  # prompts have no version, and it never counted

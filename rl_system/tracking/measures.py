"""Metrics that come from records: episodes and training batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_system.algorithms.groups import ScoredGroup
from rl_system.records import Ending, Episode, TrainBatch
from rl_system.tree import CutQuality

COUNTS = {
    "rollout/tool_calls_mean": "tool_calls",
    "rollout/tool_errors_mean": "tool_errors",
    "rollout/malformed_calls_mean": "malformed_calls",
}
"""Metrics that are means of an episode's counts."""
COUNTS_IF_ANY = {
    "rollout/cut_observations_mean": "cut_observations",
    "rollout/evaluator_errors_mean": "evaluator_errors",
    "rollout/user_requests_mean": "user_requests",
    "rollout/user_retries_mean": "user_retries",
    "rollout/user_prompt_tokens_mean": "user_prompt_tokens",
    "rollout/user_completion_tokens_mean": "user_completion_tokens",
}
"""The same for what most runs have not got: reported where some episode of the step counted any."""


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """`reward/` and `rollout/` metrics of the episodes of one step. Failed ones count in `failed_share` alone."""
    scored = [each for each in episodes if each.ended is not Ending.FAILED]
    metrics = {
        "rollout/episodes": float(len(episodes)),
        "rollout/failed_share": (len(episodes) - len(scored)) / max(len(episodes), 1),
    }
    if not scored:
        return metrics
    rewards = np.array([each.reward for each in scored])
    turns = [turn for each in scored for turn in each.turns]
    sampled = [sum(len(turn.response_ids) for turn in each.turns) for each in scored]
    metrics |= {
        "reward/mean": rewards.mean(),
        "reward/std": rewards.std(),
        "reward/max": rewards.max(),
        "reward/success_rate": np.mean([each.solved for each in scored]),
        "rollout/turns_mean": len(turns) / len(scored),
        "rollout/response_tokens_mean": sum(sampled) / max(len(turns), 1),
        "rollout/episode_tokens_mean": np.mean(sampled),
        "rollout/sequence_tokens_max": max((len(t.prompt_ids) + len(t.response_ids) for t in turns), default=0),
        "rollout/truncated_share": np.mean([not each.ended.finished for each in scored]),
    }
    for ending in {each.ended for each in scored}:
        metrics[f"rollout/ended/{ending}"] = np.mean([each.ended is ending for each in scored])
    for name, count in COUNTS.items():
        metrics[name] = np.mean([each.counts.get(count, 0) for each in scored])
    for name, count in COUNTS_IF_ANY.items():
        if any(count in each.counts for each in scored):
            metrics[name] = np.mean([each.counts.get(count, 0) for each in scored])
    for part in {name for each in scored for name in each.reward_parts}:
        metrics[f"reward/part/{part}"] = np.mean([e.reward_parts[part] for e in scored if part in e.reward_parts])
    if totals := [each.timings["total"] for each in scored if "total" in each.timings]:
        metrics |= {"rollout/episode_s_mean": np.mean(totals), "rollout/episode_s_max": max(totals)}
    return {name: float(value) for name, value in metrics.items()}


def group_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """`reward/` metrics of the groups scored for one step, dropped ones included."""
    if not groups:
        return {}
    dropped = [group for group in groups if not group.sequences]
    metrics = {
        "reward/groups": float(len(groups)),
        "reward/dropped_groups": float(len(dropped)),
        "reward/dropped_share": len(dropped) / len(groups),
    }
    counted = [group for group in groups if group.counts.any()]
    if counted:
        metrics["reward/group_std"] = float(np.mean([group.rewards[group.counts].std() for group in counted]))
        metrics["reward/shaped_mean"] = float(np.concatenate([group.shaped[group.counts] for group in counted]).mean())
        penalties = np.concatenate([group.penalties[group.counts] for group in counted])
        metrics["reward/penalty_mean"] = float(penalties.mean())
    if trained := [group.rewards[group.counts] for group in counted if group.sequences]:
        metrics["reward/trained_mean"] = float(np.concatenate(trained).mean())
    return metrics


def staleness_metrics(batch: TrainBatch, version: int) -> dict[str, float]:
    """`off_policy/stale*` of a batch that the policy of `version` is about to be trained on. Masked tokens count in
    `stale_fraction` alone.
    """
    sampled = int(batch.trained.sum())
    ages = version - batch.versions[batch.trained & (batch.weights != 0)]
    metrics = {"off_policy/stale_fraction": 1 - len(ages) / sampled} if sampled else {}
    if len(ages):
        metrics |= {"off_policy/staleness_mean": float(ages.mean()), "off_policy/staleness_max": float(ages.max())}
    return metrics


def cut_metrics(made: CutQuality, compared: CutQuality) -> dict[str, float]:
    """`tree/` metrics of how a batch was cut for its trainers. compared: the same cut, or one for more trainers."""
    return {
        "tree/shareable": made.sequence_tokens / max(made.unique_tokens, 1),
        "tree/sharing_kept": made.kept,
        "tree/imbalance": made.imbalance,
        "tree/repeated": compared.repeated,
    }

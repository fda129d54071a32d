"""How good a policy is on a set of tasks: success rate, and how reliably it succeeds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np

from rl_system.records import Ending, Episode


def evaluation_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """`eval/` metrics of episodes of any number of tasks; failed episodes count as unsolved, and in `failed_share`."""
    successes = defaultdict(list)
    for episode in episodes:
        successes[episode.task].append(episode.solved)
    if not successes:
        raise ValueError("evaluation: there are no episodes")
    metrics = {
        "eval/episodes": float(len(episodes)),
        "eval/success_rate": float(np.mean([success for each in successes.values() for success in each])),
        "eval/reward_mean": float(np.mean([episode.reward for episode in episodes])),
        "eval/failed_share": float(np.mean([episode.ended == "failed" for episode in episodes])),
    }
    trials = min(map(len, successes.values()))
    for k in range(1, trials + 1):
        metrics[f"eval/pass/{k}"] = float(np.mean([pass_hat(sum(each), len(each), k) for each in successes.values()]))
    return metrics


def evaluation_summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Success rate, pass^k, the mean of each reward part where it counts, endings, and what the user's model cost."""
    metrics = evaluation_metrics(episodes)
    parts = defaultdict(list)
    user: Counter[str] = Counter()
    for episode in episodes:
        for name, value in episode.reward_parts.items():
            parts[name].append(value)
        user.update({name: count for name, count in episode.counts.items() if name.startswith("user_")})
    return {
        "success_rate": metrics["eval/success_rate"],
        **{
            f"pass^{name.rpartition('/')[2]}": value for name, value in metrics.items() if name.startswith("eval/pass/")
        },
        "reward_mean": metrics["eval/reward_mean"],
        "episodes": len(episodes),
        "failed": sum(episode.ended is Ending.FAILED for episode in episodes),
        "reward_parts": {name: sum(values) / len(values) for name, values in sorted(parts.items())},
        "ended": dict(Counter(episode.ended.value for episode in episodes)),
        **user,
    }


def pass_hat(successes: int, trials: int, k: int) -> float:
    """Unbiased estimate of the probability that k independent trials of a task all succeed: C(c, k) / C(n, k).

    τ-bench (arXiv 2406.12045, section 3), with c successes in n trials, k ≤ n.
    """
    return comb(successes, k) / comb(trials, k)

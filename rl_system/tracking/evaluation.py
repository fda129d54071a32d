"""How good a policy is on a set of tasks: success rate, and how reliably it succeeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import comb

import numpy as np

from rl_system.records import Episode


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


def pass_hat(successes: int, trials: int, k: int) -> float:
    """Unbiased estimate of the probability that k independent trials of a task all succeed: C(c, k) / C(n, k).

    τ-bench (arXiv 2406.12045, section 3), with c successes in n trials, k ≤ n.
    """
    return comb(successes, k) / comb(trials, k)

"""Tasks drawn by what they can teach now: those that the policy solves sometimes.

A group teaches by the differences among its members, and with a success rate `p` of the task two members differ with
probability `2p(1 − p)`. So a task weighs `p(1 − p)`, its learnability (arXiv 2408.15099; for language models arXiv 2502.12272),
and a fixed share of the draws goes to all tasks alike. A task may be drawn again while a group of it is under way.

Invariant: a draw depends on the seed, the number of draws before it and the outcomes told so far. Every task keeps a
probability of at least `uniform_share / tasks`, so none starves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_system.config.curriculum import CurriculumConfig

PRIOR = 1.0
"""Successes and failures that every task is believed to have had: a new task counts as solved half of the time, which
is the highest weight there is, and so is tried soon."""


class Curriculum:
    """Tasks are known by their index. solved, failed: float64 [tasks], episodes by outcome, fading with `memory`."""

    kind = "curriculum"

    def __init__(self, count: int, seed: int, config: CurriculumConfig) -> None:
        self.seed, self.config = seed, config
        self.draws = 0
        self.solved = np.zeros(count)
        self.failed = np.zeros(count)

    def next(self) -> int:
        random = np.random.default_rng((self.seed, self.draws))
        self.draws += 1
        return int(random.choice(len(self.solved), p=self.probabilities()))

    def observe(self, task: int, solved: int, episodes: int) -> None:
        """A group of `task` is over; `solved` of its `episodes` succeeded. What was known before fades once."""
        if not 0 <= solved <= episodes:
            raise ValueError(f"curriculum: {solved} of {episodes} episodes succeeded")
        memory = self.config.memory
        self.solved[task] = memory * self.solved[task] + solved
        self.failed[task] = memory * self.failed[task] + episodes - solved

    def success_rates(self) -> np.ndarray:
        """Estimated success rate of each task, float64 [tasks], strictly between 0 and 1."""
        return (self.solved + PRIOR) / (self.solved + self.failed + 2 * PRIOR)

    def probabilities(self) -> np.ndarray:
        """Of drawing each task next, float64 [tasks]; they add up to 1."""
        rates = self.success_rates()
        learnable = rates * (1 - rates)
        uniform = self.config.uniform_share
        return (1 - uniform) * learnable / learnable.sum() + uniform / len(rates)

    def metrics(self) -> dict[str, float]:
        """By full metric name. Effective tasks: the perplexity of the next draw."""
        seen, probabilities, rates = self.solved + self.failed > 0, self.probabilities(), self.success_rates()
        metrics = {
            "rollout/curriculum_seen_share": seen.mean(),
            "rollout/curriculum_effective_tasks": np.exp(-(probabilities * np.log(probabilities)).sum()),
            "rollout/curriculum_success_next": (rates * probabilities).sum(),
        }
        if seen.any():
            metrics["rollout/curriculum_success_mean"] = rates[seen].mean()
        return {name: float(value) for name, value in metrics.items()}

    def state(self) -> dict[str, Any]:
        outcomes = {"solved": self.solved.tolist(), "failed": self.failed.tolist()}
        return {"kind": self.kind, "draws": self.draws} | outcomes

    def restore(self, state: dict[str, Any]) -> None:
        self.draws = state["draws"]
        self.solved, self.failed = np.array(state["solved"]), np.array(state["failed"])

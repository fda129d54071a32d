"""What the episodes of a stretch of time looked like: rewards, endings, turns, tokens. All groups count, dropped ones too."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from rl_system.algorithms.groups import ScoredGroup
from rl_system.records import Ending, Episode

SOLVED = 1.0 - 1e-6
"""Reward from which on an episode counts as a success."""


@dataclass(slots=True)
class RolloutStatistics:
    rewards: list[float] = field(default_factory=list)
    shaped: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    response_tokens: list[int] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    groups_without_signal: int = 0

    def add_group(self, episodes: list[Episode], group: ScoredGroup) -> None:
        self.groups += 1
        self.groups_without_signal += not group.signal
        self.shaped += group.shaped.tolist()
        for episode in episodes:
            self.add_episode(episode)

    def add_episode(self, episode: Episode) -> None:
        self.endings[episode.ended.value] += 1
        self.counts.update(episode.counts)
        if episode.ended is Ending.FAILED:
            return
        self.rewards.append(episode.reward)
        self.turns.append(len(episode.turns))
        self.response_tokens.append(sum(len(turn.response_ids) for turn in episode.turns))

    def metrics(self) -> dict[str, float]:
        """By full metric name; means are missing where nothing was scored."""
        episodes = sum(self.endings.values())
        result = {
            "rollout/episodes": float(episodes),
            "rollout/groups": float(self.groups),
            "rollout/groups_without_signal": float(self.groups_without_signal),
        }
        result |= {f"rollout/ended_{ending}": count / episodes for ending, count in self.endings.items()}
        result |= {f"rollout/{name}": count / episodes for name, count in self.counts.items()}
        if self.rewards:
            rewards = np.array(self.rewards)
            result |= {
                "reward/mean": float(rewards.mean()),
                "reward/std": float(rewards.std()),
                "reward/success_rate": float((rewards >= SOLVED).mean()),
                "rollout/turns": float(np.mean(self.turns)),
                "rollout/response_tokens": float(np.mean(self.response_tokens)),
            }
        if self.shaped:
            result["reward/shaped_mean"] = float(np.mean(self.shaped))
        return result

"""From the episodes of one task to scored training sequences.

Invariant: an advantage is computed from members of one group alone. A member that failed, or that is masked, is none:
the others are compared without it, and it is trained on not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_system.algorithms import registry
from rl_system.algorithms.credit import turn_advantages
from rl_system.algorithms.rewards import penalty, shaped_reward
from rl_system.algorithms.sequences import contributes, sequences_of
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import Episode, Sequence

SAME = 1e-9
"""Rewards that differ by less, relative to the largest, are the same: shaping may round differently."""


@dataclass(slots=True)
class ScoredGroup:
    """Arrays [members]. rewards: the environment's; shaped: after shaping; penalties: what shaping took for form and
    length; advantages: 0 where not `counts`.

    sequences: of all members that count, in their order; empty where the group has no signal and such groups are
    dropped. signal: whether the estimator finds anything to learn in the group, in what episodes or turns of their own
    earned. credits: of each member, [turns], what its turns are credited with, see `credit`.
    """

    sequences: list[Sequence]
    rewards: np.ndarray
    shaped: np.ndarray
    penalties: np.ndarray
    advantages: np.ndarray
    counts: np.ndarray
    signal: bool
    credits: list[np.ndarray]


def score_group(episodes: list[Episode], config: AlgorithmConfig) -> ScoredGroup:
    """Shape rewards, compare the members, and turn them into sequences. episodes: of one group, in any number."""
    groups = {episode.group_id for episode in episodes}
    if len(groups) > 1:
        raise ValueError(f"episodes of groups {sorted(groups)} cannot be compared with each other")
    shaped = np.array([shaped_reward(episode, config) for episode in episodes], np.float64)
    counts = np.array([contributes(episode.ended, config.treatment(episode.ended)) for episode in episodes], np.bool_)
    advantages = group_advantages(config.advantage, shaped, counts)
    signal = has_signal(config.advantage, shaped, counts)
    credits = []
    for member, (episode, advantage) in enumerate(zip(episodes, advantages, strict=True)):
        own: dict[int, float] = {}
        for turn, reward in episode.turn_rewards.items():
            others = shaped.copy()
            others[member] = shaped_reward(episode, config, reward)
            own[turn] = float(group_advantages(config.advantage, others, counts)[member])
            signal |= bool(counts[member]) and has_signal(config.advantage, others, counts)
        credits.append(turn_advantages(float(advantage), episode.tree, config, own))
    sequences: list[Sequence] = []
    if signal or not config.drop_zero_signal:
        for episode, per_turn in zip(episodes, credits, strict=True):
            sequences += sequences_of(episode, per_turn, truncated=config.treatment(episode.ended))
    return ScoredGroup(
        sequences=sequences,
        rewards=np.array([episode.reward for episode in episodes], np.float64),
        shaped=shaped,
        penalties=np.array([penalty(episode, config) for episode in episodes], np.float64),
        advantages=advantages,
        counts=counts,
        signal=signal,
        credits=credits,
    )


def group_advantages(estimator: str, rewards: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Advantages float64 [members] of one group; UserError where no estimator has that name.

    rewards: [members]; counts: bool [members], who takes part (default: all). Members that do not get 0, whatever their
    reward is. Exactly 0 for all where `has_signal` is False and the estimator compares.
    """
    function = registry.find("advantages", estimator)
    rewards, counts = _members(rewards, counts)
    advantages = np.zeros(len(rewards))
    if counts.any() and (not function.compares or has_signal(estimator, rewards, counts)):
        advantages[counts] = function(rewards[counts])
    return advantages


def has_signal(estimator: str, rewards: np.ndarray, counts: np.ndarray | None = None) -> bool:
    """Whether the group teaches anything: some member counts and, if the estimator compares, two that count differ."""
    rewards, counts = _members(rewards, counts)
    taking_part = rewards[counts]
    if not registry.find("advantages", estimator).compares:
        return len(taking_part) > 0
    return len(taking_part) > 1 and bool(np.ptp(taking_part) > SAME * max(1.0, np.abs(taking_part).max()))


def _members(rewards: np.ndarray, counts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    rewards = np.asarray(rewards, np.float64)
    counts = np.ones(len(rewards), np.bool_) if counts is None else np.asarray(counts, np.bool_)
    if len(rewards) != len(counts):
        raise ValueError(f"{len(rewards)} rewards, but {len(counts)} marks of who counts")
    if not np.isfinite(rewards[counts]).all():
        raise ValueError(f"rewards of members that count must be finite, not {rewards[counts].tolist()}")
    return rewards, counts

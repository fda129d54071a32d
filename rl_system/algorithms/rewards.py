"""What an episode is paid for, from what its environment gave it."""

from __future__ import annotations

from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import Episode


def shaped_reward(episode: Episode, config: AlgorithmConfig, reward: float | None = None) -> float:
    """`reward · reward_scale + reward_offset − penalty`. reward: in place of the episode's own, such as that of a turn.

    It counts as 0 where the treatment of the episode's ending is `zero_reward`: what it stood at when a budget ran out was
    never earned.
    """
    reward = episode.reward if reward is None else reward
    if config.treatment(episode.ended) == "zero_reward":
        reward = 0.0
    return reward * config.reward_scale + config.reward_offset - penalty(episode, config)


def penalty(episode: Episode, config: AlgorithmConfig) -> float:
    """For form and length, in units of the shaped reward: `malformed_call_penalty · malformed calls +
    tool_error_penalty · failed calls + length penalty`. Malformed calls are failed ones too.
    """
    malformed = config.malformed_call_penalty * episode.counts.get("malformed_calls", 0)
    failed = config.tool_error_penalty * episode.counts.get("tool_errors", 0)
    sampled = sum(len(turn.response_ids) for turn in episode.turns)
    return malformed + failed + length_penalty(sampled, config)


def length_penalty(sampled: int, config: AlgorithmConfig) -> float:
    """From 0 at `length_penalty_start` sampled tokens, in proportion, to `length_penalty` at `length_penalty_full`
    and beyond: the soft overlong punishment of DAPO (arXiv 2503.14476, eq. 13).
    """
    if config.length_penalty == 0:
        return 0.0
    start, full = config.length_penalty_start, config.length_penalty_full
    return config.length_penalty * min(max((sampled - start) / (full - start), 0.0), 1.0)

"""What an episode is paid for, from what its environment gave it."""

from __future__ import annotations

from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import Episode


def shaped_reward(episode: Episode, config: AlgorithmConfig) -> float:
    """`reward · reward_scale + reward_offset − malformed_call_penalty · malformed calls`.

    The environment's reward counts as 0 where the episode was cut short and `truncated` is `zero_reward`: what it stood
    at when a budget ran out was never earned. The penalty is in units of the shaped reward.
    """
    reward = episode.reward
    if not episode.ended.finished and config.truncated == "zero_reward":
        reward = 0.0
    penalty = config.malformed_call_penalty * episode.counts.get("malformed_calls", 0)
    return reward * config.reward_scale + config.reward_offset - penalty

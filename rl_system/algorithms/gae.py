"""Advantages and returns from a critic's values: generalised advantage estimation (arXiv 1506.02438, eq. 16).

Time runs over the *sampled* tokens of a sequence; what the environment wrote in between is part of the next state.
The value at a token is that of the state before it was sampled.

Until then a batch carries returns in place of advantages: at each token what its sequence earns from there on,
undiscounted, after credit to turns and charges such as a divergence. The reward of a token is what its return exceeds
the next one's by. Where an episode goes on in another sequence, the last token's return stands for all that follows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_system.algorithms import registry
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import TrainBatch


def needs_critic(config: AlgorithmConfig) -> bool:
    """Whether the advantages rest on a critic's values."""
    return registry.find("advantages", config.advantage).critic


def generalised_advantages(
    rewards: np.ndarray, values: np.ndarray, discount: float, decay: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns float64 [n] of one sequence. rewards, values: [n], by sampled token; the last state is
    final.

    `δ_t = r_t + γ V_{t+1} − V_t`, `A_t = Σ_k (γλ)^k δ_{t+k}`, `R_t = A_t + V_t`. discount: γ; decay: λ.
    """
    values = np.asarray(values, np.float64)
    delta = rewards + discount * np.append(values[1:], 0.0) - values
    advantages = np.zeros(len(values))
    running = 0.0
    for t in range(len(values) - 1, -1, -1):
        running = delta[t] + discount * decay * running
        advantages[t] = running
    return advantages, advantages + values


def with_gae(batch: TrainBatch, discount: float = 1.0, decay: float = 0.95) -> TrainBatch:
    """`batch`, which carries values, and returns as its advantages, with advantages and the critic's targets.

    Sequences are whole wherever a batch is cut, so this may be done on any part.
    """
    if batch.values is None:
        raise ValueError("generalised advantages need the critic's values in the batch")
    advantages = np.zeros(batch.sequence_tokens, np.float32)
    targets = np.zeros(batch.sequence_tokens, np.float32)
    for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        sampled = begin + np.flatnonzero(batch.trained[begin:end])
        earned = batch.advantages[sampled].astype(np.float64)
        rewards = earned - np.append(earned[1:], 0.0)[: len(earned)]
        advantages[sampled], targets[sampled] = generalised_advantages(rewards, batch.values[sampled], discount, decay)
    return replace(batch, advantages=advantages, returns=targets)

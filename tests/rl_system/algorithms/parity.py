"""A text environment that a tiny model learns in seconds, played and trained in one process with the system's own
parts.

A task is a digit. The agent answers twice, two tokens each; in between the environment says a word. A token is right
if it is a digit of the task's parity, and the reward is the share of right tokens: a policy that draws tokens blindly
earns 3/8.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from rl_system.algorithms import prepare_batch, score_group, set_loss_weights
from rl_system.algorithms.batching import join_groups, minibatches
from rl_system.algorithms.gae import needs_critic
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.records import Ending, Episode, Task, Turn
from rl_system.training.learner import Learner
from tests.rl_system.algorithms.models import tiny_model

DIGITS = 6
BEGIN, WORD = DIGITS, DIGITS + 1
VOCABULARY = DIGITS + 2
ANSWER = 2
GROUP = 8


def play(model: PreTrainedModel, version: int, generator: torch.Generator, gold: bool = False) -> list[list[Episode]]:
    """A group of episodes for each digit, sampled by `model`, or (gold) by a script that always answers right."""
    digits = np.repeat(np.arange(DIGITS), GROUP)
    text = torch.tensor(np.stack([np.full(len(digits), BEGIN), digits], 1))
    turns: list[tuple[int, np.ndarray]] = []
    right = np.zeros(len(digits))
    for _ in range(2):
        start, drawn = text.shape[1], []
        for _ in range(ANSWER):
            with torch.no_grad():
                logp = model(text).logits[:, -1].log_softmax(-1)
            tokens = torch.multinomial(logp.exp(), 1, generator=generator)
            if gold:
                tokens = torch.tensor(digits % 2 + 2)[:, None]
            drawn.append(logp.gather(1, tokens))
            text = torch.cat([text, tokens], 1)
            right += (tokens[:, 0].numpy() % 2 == digits % 2) & (tokens[:, 0].numpy() < DIGITS)
        turns.append((start, torch.cat(drawn, 1).numpy()))
        text = torch.cat([text, torch.full((len(digits), 1), WORD)], 1)
    rows = text.numpy().astype(np.int32)

    def episode(row: int) -> Episode:
        made = [
            Turn(rows[row, :at], rows[row, at : at + ANSWER], logp[row], np.full(ANSWER, version, np.int32), "length")
            for at, logp in turns
        ]
        digit, index = divmod(row, GROUP)
        reward = right[row] / (2 * ANSWER)
        task = Task("parity", "digits", str(digit), "train")
        return Episode(task, digit, index, made, [], reward, {}, Ending.AGENT_STOP)

    return [[episode(digit * GROUP + member) for member in range(GROUP)] for digit in range(DIGITS)]


def learn(algorithm: AlgorithmConfig, seed: int, steps: int = 24) -> tuple[float, float]:
    """Mean reward before and after `steps` updates, each on episodes that are one update older than need be."""
    model, reference, critic = (tiny_model(VOCABULARY, dtype=torch.float32, layers=1, seed=seed) for _ in range(3))
    learner = Learner(
        model,
        algorithm=algorithm,
        executor=ExecutorConfig(method="tree", block_tokens=0),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        updates=steps * algorithm.updates_per_batch,
        reference=reference if algorithm.kl_coefficient else None,
        critic=critic if needs_critic(algorithm) else None,
    )
    generator = torch.Generator().manual_seed(seed)
    gold = algorithm.objective == "sft"
    start = mean_reward(model, generator)
    waiting = play(model, learner.version, generator, gold)
    for _ in range(steps):
        groups, waiting = waiting, play(model, learner.version, generator, gold)
        scored = {group[0].group_id: score_group(group, algorithm).sequences for group in groups}
        if not any(scored.values()):
            continue  # every group has learnt all there is, or nothing: no signal left
        batch = prepare_batch(join_groups(scored), algorithm, learner.version)
        learner.update(
            [
                set_loss_weights(part, algorithm.aggregation, algorithm.constant_length)
                for part in minibatches(batch, algorithm.updates_per_batch)
            ]
        )
    return start, mean_reward(model, generator)


def mean_reward(model: PreTrainedModel, generator: torch.Generator, plays: int = 3) -> float:
    """Of `plays` groups a digit, sampled anew."""
    return float(np.mean([e.reward for _ in range(plays) for group in play(model, 0, generator) for e in group]))

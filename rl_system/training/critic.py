"""The critic being trained: value model, executor and optimizer of its own, on one rank.

Every rank calls the same methods in the same order, as with `Learner`. Within an update the values that advantages rest
on are those from before it: `assess` comes before the policy moves, `update` after.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from rl_system.algorithms.gae import with_gae
from rl_system.algorithms.statistics import Statistics
from rl_system.algorithms.value_objective import ValueObjective
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.executor import make_executor
from rl_system.records import TrainBatch
from rl_system.training.ranks import Ranks
from rl_system.training.schedule import learning_rate
from rl_system.training.trained import Trained
from rl_system.training.value_model import ValueModel

SAME_RETURNS = 1e-12
"""Returns whose variance is below this are all the same: there is nothing to explain."""


class Critic(Trained):
    """Owns `backbone`, a causal language model whose logits are not used, from now on. updates: as for `Learner`."""

    def __init__(
        self,
        backbone: PreTrainedModel,
        *,
        algorithm: AlgorithmConfig,
        executor: ExecutorConfig,
        optimizer: OptimizerConfig,
        updates: int,
        ranks: Ranks,
    ) -> None:
        self.config, self.updates = algorithm.critic, updates
        rate = self.config.learning_rate
        model = ValueModel(backbone)
        super().__init__(
            model,
            {"backbone.": backbone, "head.": model.head},
            optimizer.model_copy(update={"learning_rate": rate}),
            ranks,
            f"algorithm.critic.learning_rate than {rate:g}",
        )
        self.executor = make_executor(backbone, executor, head=model.head)
        self.objective = ValueObjective(self.config.value_clip)

    def values(self, batch: TrainBatch) -> np.ndarray:
        """Value [sequence_tokens] of the state before each trained token, 0 elsewhere."""
        return self.executor.logprobs(batch)

    def assess(self, minibatches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """This rank's part of a step, which carries returns, with values, advantages and the critic's targets."""
        discount, decay = self.config.discount, self.config.gae_lambda
        return [with_gae(replace(each, values=self.values(each)), discount, decay) for each in minibatches]

    def update(self, minibatches: Sequence[TrainBatch]) -> dict[str, float]:
        """Train on what `assess` gave. Metrics of the whole step by their full names, the same on every rank.

        Raises UserError where too many steps in a row were not finite.
        """
        started = time.perf_counter()
        statistics = Statistics()
        outcomes = []
        for minibatch in minibatches:
            result = self.executor.step(minibatch, self.objective)
            statistics.merge(result.statistics)
            rate = learning_rate(self.optimizer.config, self.optimizer.updates, self.updates)
            outcomes.append(self.optimizer.step(result.loss, rate))
            self.bad_steps.watch(outcomes[-1])
        total = Statistics()
        for part in self.ranks.gather_objects(statistics):
            total.merge(part)
        return total.values() | self._fit(minibatches) | {
            "train/critic_grad_norm": float(np.mean([outcome.gradient_norm for outcome in outcomes])),
            "train/critic_learning_rate": rate,
            "train/critic_empty_updates": float(sum(outcome.empty for outcome in outcomes)),
            "train/critic_bad_steps": float(self.bad_steps.total),
            "perf/critic_s": time.perf_counter() - started,
        }

    def _fit(self, minibatches: Sequence[TrainBatch]) -> dict[str, float]:
        """How well the values from before the update foretold the returns: `1 − Var(R − V) / Var(R)`."""
        returns = np.concatenate([each.returns[each.weights != 0] for each in minibatches], dtype=np.float64)
        values = np.concatenate([each.values[each.weights != 0] for each in minibatches], dtype=np.float64)
        errors = returns - values
        numbers = [float(each.sum()) for each in (returns, values, returns**2, errors, errors**2)]
        count, *sums = self.ranks.sum([float(len(returns)), *numbers], self.flat.gradients.device)
        if count == 0:
            return {}
        mean_return, mean_value, square_return, mean_error, square_error = (each / count for each in sums)
        metrics = {"train/return_mean": mean_return, "train/value_mean": mean_value}
        variance = square_return - mean_return**2
        if variance > SAME_RETURNS:
            metrics["train/value_explained_variance"] = 1 - (square_error - mean_error**2) / variance
        return metrics

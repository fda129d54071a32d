"""The policy being trained: model, executor, optimizer and schedule, on one rank.

Every rank calls the same methods in the same order with its part of the batch, which may be empty. A batch's loss
weights are fixed before it is cut into parts, so the sum over ranks of losses and gradients is that of the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from rl_system.algorithms import make_objective
from rl_system.algorithms.aggregation import completed_by_trainers, normalise_advantages, normalises_batch
from rl_system.algorithms.gae import needs_critic
from rl_system.algorithms.kl import needs_reference, with_reference
from rl_system.algorithms.objective import Objective
from rl_system.algorithms.proximal import needs_proximal_pass
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.config.run import RunConfig
from rl_system.executor import Executor, make_executor
from rl_system.records import TrainBatch
from rl_system.training.critic import Critic
from rl_system.training.optimizer import StepOutcome
from rl_system.training.ranks import Ranks
from rl_system.training.schedule import learning_rate
from rl_system.training.trained import Trained
from rl_system.training.weights import export_weights
from rl_system.training.work import Work


class Learner(Trained):
    """Owns `model` from now on. updates: optimizer steps of the whole run, which the schedule is laid over.

    reference: the policy that the divergence in `algorithm.kl_coefficient` is measured from; never trained. critic: the
    model that a critic starts from where `algorithm.advantage` needs one; owned too.

    version: policy version of the parameters; `update` raises it by one, whatever the number of minibatches.

    ranks: those that train on other parts of a batch. world: all ranks there are, where several of them share one model
    (see `tensor_parallel`; `model` is this rank's share of it then).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        algorithm: AlgorithmConfig,
        executor: ExecutorConfig,
        optimizer: OptimizerConfig,
        updates: int,
        temperature: float = 1.0,
        ranks: Ranks | None = None,
        world: Ranks | None = None,
        version: int = 0,
        reference: PreTrainedModel | None = None,
        critic: PreTrainedModel | None = None,
    ) -> None:
        if needs_reference(algorithm) and reference is None:
            raise ValueError("algorithm.kl_coefficient is set: the learner needs a reference model")
        if needs_critic(algorithm) and critic is None:
            raise ValueError(f"algorithm.advantage is {algorithm.advantage!r}: the learner needs a critic model")
        self.algorithm, self.updates, self.version, self.temperature = algorithm, updates, version, temperature
        cure = f"optimizer.learning_rate than {optimizer.learning_rate:g}"
        super().__init__(model, {"": model}, optimizer, ranks or Ranks(), cure)
        self.world = world or self.ranks
        self._make_executor = partial(make_executor, config=executor, temperature=temperature)
        self.executor = self._make_executor(model)
        self.reference: Executor | None = None
        if reference is not None:
            self.set_reference(reference)
        self.critic: Critic | None = None
        if critic is not None:
            self.critic = Critic(
                critic, algorithm=algorithm, executor=executor, optimizer=optimizer, updates=updates, ranks=self.ranks
            )
        self.last_logprobs: list[np.ndarray] = []
        """Of each minibatch of the last update, [sequence_tokens]: logprobs under the parameters before its step."""

    @classmethod
    def of(cls, config: RunConfig, model: PreTrainedModel, **more: Any) -> Learner:
        """As a run configures it. more: what a configuration does not know, such as `ranks`."""
        return cls(
            model,
            algorithm=config.algorithm,
            executor=config.executor,
            optimizer=config.optimizer,
            updates=config.steps * config.algorithm.updates_per_batch,
            temperature=config.rollout.sampling.temperature,
            **more,
        )

    def regroup(self, ranks: Ranks) -> None:
        """Of the critic too. Not where several ranks share a model."""
        super().regroup(ranks)
        self.world = ranks
        if self.critic is not None:
            self.critic.regroup(ranks)

    def set_reference(self, model: PreTrainedModel) -> None:
        """Measure divergence from `model` from now on."""
        self.reference = self._make_executor(model.requires_grad_(False))

    def update(self, batch: TrainBatch | Sequence[TrainBatch]) -> dict[str, float]:
        """Train on this rank's part of a step's batch, or of each of its minibatches in turn.

        Returns metrics of the whole batch by their full names, the same on every rank. Raises UserError when
        `optimizer.max_bad_steps` steps in a row had a loss or gradient that is not finite, or one left parameters that are
        not. A batch in which no token has a gradient changes neither parameters nor optimizer nor schedule, and is the next
        policy version all the same: versions count batches, which is what staleness is counted in.
        """
        started = time.perf_counter()
        minibatches = self._complete([batch] if isinstance(batch, TrainBatch) else list(batch))
        objective = self.make_objective()
        work = Work()
        outcomes, rates = [], []
        self.last_logprobs = []
        for minibatch in minibatches:
            result = self.executor.step(minibatch, objective)
            work.add(minibatch, result)
            self.last_logprobs.append(result.logprobs)
            rates.append(learning_rate(self.optimizer.config, self.optimizer.updates, self.updates))
            computed = time.perf_counter()
            outcomes.append(self.optimizer.step(result.loss, rates[-1]))
            work.reduced(time.perf_counter() - computed)
            self.bad_steps.watch(outcomes[-1])
        metrics = {} if self.critic is None else self.critic.update(minibatches)
        self.version += 1
        seconds = time.perf_counter() - started
        return metrics | self._metrics(work, outcomes, rates, seconds)

    def _complete(self, minibatches: list[TrainBatch]) -> list[TrainBatch]:
        """With what only the models can tell, as they are before the update: logprobs, values, final advantages."""
        if needs_proximal_pass(self.algorithm):
            minibatches = [replace(each, proximal_logprobs=self.logprobs(each)) for each in minibatches]
        if self.reference is not None:
            minibatches = [with_reference(each, self.reference.logprobs(each), self.algorithm) for each in minibatches]
        if self.critic is not None:
            minibatches = self.critic.assess(minibatches)
        if normalises_batch(self.algorithm) and completed_by_trainers(self.algorithm):
            device = self.flat.values.device
            minibatches = normalise_advantages(minibatches, lambda numbers: self.ranks.sum(numbers, device))
        return minibatches

    def make_objective(self) -> Objective:
        """The configured objective for an update of the present policy version."""
        return make_objective(self.algorithm, self.version)

    def logprobs(self, batch: TrainBatch, temperature: float | None = None) -> np.ndarray:
        """Logprobs [sequence_tokens] of the batch's trained tokens under the current parameters, 0 elsewhere.

        temperature: that of sampling where None. At 1 they are what an engine says of a prompt.
        """
        if temperature in (None, self.temperature):
            return self.executor.logprobs(batch)
        return self._make_executor(self.model, temperature=temperature).logprobs(batch)

    def export(self, chunk_bytes: int) -> Iterator[dict[str, np.ndarray]]:
        """The parameters under their Hugging Face names, chunk by chunk; see `export_weights`."""
        return export_weights(self.model, chunk_bytes)

    def _metrics(
        self, work: Work, outcomes: list[StepOutcome], rates: list[float], seconds: float
    ) -> dict[str, float]:
        total = Work()
        for part in self.ranks.gather_objects(work):
            total.merge(part)
        applied = [outcome for outcome in outcomes if outcome.applied]
        return total.metrics() | {
            "train/loss": float(np.mean([outcome.loss for outcome in outcomes])),
            "train/grad_norm": float(np.mean([outcome.gradient_norm for outcome in outcomes])),
            "train/learning_rate": rates[-1],
            "train/updates": float(len(applied)),
            "train/empty_updates": float(sum(outcome.empty for outcome in outcomes)),
            "train/bad_steps": float(self.bad_steps.total),
            "perf/train_s": seconds,
            "perf/train_tokens_per_s": total.sequence_tokens / seconds,
            "perf/train_unique_tokens_per_s": total.unique_tokens / seconds,
        }

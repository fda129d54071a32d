"""The whole configuration of a run, and the rules that tie its sections together."""

from pathlib import Path

from pydantic import Field, model_validator

from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.allocation import AllocationConfig
from rl_system.config.budgets import (
    require_sizes_that_can_be_meant,
    require_time_for_groups,
    require_time_for_trainers,
    require_time_for_users,
)
from rl_system.config.checkpoint import CheckpointConfig
from rl_system.config.determinism import require_determinism
from rl_system.config.environment import EnvironmentConfig
from rl_system.config.evaluation import EvaluationConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.fields import Seed
from rl_system.config.model import ModelConfig
from rl_system.config.names import RunName, require_room_for_names
from rl_system.config.optimizer import OptimizerConfig
from rl_system.config.recovery import RecoveryConfig
from rl_system.config.rollout import RolloutConfig
from rl_system.config.section import Section
from rl_system.config.tracking import TrackingConfig
from rl_system.config.warm_start import WarmStartConfig
from rl_system.config.weights import WeightsConfig


class RunConfig(Section):
    name: RunName
    """The run's directory is `<output>/<name>`."""
    output: Path = Field(Path("runs"), validate_default=True)
    """Absolute after loading; relative, it is below the working directory of the command."""
    seed: Seed = 0
    deterministic: bool = False
    """Whether the run is to come out the same when it is repeated, or killed and resumed: the same batches and, on CPUs,
    the same parameters bit for bit. Every turn is then sampled with a seed of its own, which follows from `seed`, group,
    member and turn, and an engine takes one request at a time and reuses no prefix, so that no number depends on what
    else is computed with it: sampling is several times slower. Strictly on-policy only."""
    steps: int = Field(10, ge=1)
    """Policy updates."""
    model: ModelConfig = ModelConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    executor: ExecutorConfig = ExecutorConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    weights: WeightsConfig = WeightsConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    allocation: AllocationConfig = AllocationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def directory(self) -> Path:
        return self.output / self.name

    @model_validator(mode="after")
    def budgets_contain_each_other(self) -> "RunConfig":
        require_sizes_that_can_be_meant(self)
        require_time_for_users(self.environment)
        require_time_for_groups(self)
        require_time_for_trainers(self.allocation)
        return self

    @model_validator(mode="after")
    def the_file_system_takes_the_names(self) -> "RunConfig":
        tree = f"{self.name}_step_{self.steps}.json.new"
        require_room_for_names(self.output, self.name, [tree] if self.tracking.dump_trees else [])
        return self

    @model_validator(mode="after")
    def sections_agree(self) -> "RunConfig":
        rollout, model = self.rollout, self.model
        if self.algorithm.compares_members and rollout.group_size < 2:
            raise ValueError(
                f"rollout.group_size is {rollout.group_size}, but algorithm.advantage {self.algorithm.advantage!r} "
                "compares the members of a group with each other; use at least 2"
            )
        if rollout.over_sample and rollout.episodes_per_group > self.environment.concurrency:
            raise ValueError(
                f"rollout.over_sample is {rollout.over_sample} on top of rollout.group_size {rollout.group_size}, but "
                f"environment.concurrency lets only {self.environment.concurrency} episodes run at once: what is "
                "started late cannot overtake; use a concurrency of at least their sum"
            )
        algorithm = self.algorithm
        if algorithm.updates_per_batch > rollout.groups_per_batch:
            raise ValueError(
                f"algorithm.updates_per_batch is {algorithm.updates_per_batch}, but rollout.groups_per_batch "
                f"{rollout.groups_per_batch} groups cannot be dealt out to so many updates; use at most one a group"
            )
        if algorithm.length_penalty and algorithm.length_penalty_start >= rollout.max_episode_tokens:
            raise ValueError(
                f"algorithm.length_penalty_start is {algorithm.length_penalty_start}, but rollout.max_episode_tokens "
                f"{rollout.max_episode_tokens} lets no episode get there: nothing would be penalised; use a smaller one"
            )
        if algorithm.mask_staleness_above is not None and algorithm.mask_staleness_above >= rollout.max_staleness:
            raise ValueError(
                f"algorithm.mask_staleness_above is {algorithm.mask_staleness_above}, but rollout.max_staleness "
                f"{rollout.max_staleness} lets nothing older through: it would mask nothing; use a smaller one or null"
            )
        if rollout.sampling.max_new_tokens >= model.max_model_len:
            raise ValueError(
                f"rollout.sampling.max_new_tokens is {rollout.sampling.max_new_tokens}, which leaves no room for a "
                f"prompt in model.max_model_len {model.max_model_len}; use a smaller one"
            )
        if rollout.sampling.temperature == 0:
            raise ValueError(
                "rollout.sampling.temperature is 0: greedy rollouts of a task are all alike and have no logprobs to "
                "train on; use a temperature above 0 (1.0 is usual)"
            )
        if rollout.sampling.top_p != 1 or rollout.sampling.top_k != 0:
            raise ValueError(
                f"rollout.sampling.top_p is {rollout.sampling.top_p} and top_k is {rollout.sampling.top_k}: the sampler "
                "would draw from a renormalised distribution that the trainer does not compute; use top_p 1, top_k 0"
            )
        needed = {"nccl": "cuda", "gloo": "cpu"}.get(self.weights.transport, model.device)
        if model.device != needed:
            raise ValueError(
                f"weights.transport is {self.weights.transport!r}, which broadcasts between devices of kind {needed!r}, but "
                f"model.device is {model.device!r}; use 'object_store' or 'directory'"
            )
        sharing = self.allocation.tensor_parallel
        if sharing > 1 and self.executor.method == "auto":
            raise ValueError(
                f"executor.method is 'auto', which chooses by measured times, but allocation.tensor_parallel is {sharing} and "
                "all trainers that share a model must run the same blocks; use 'tree'"
            )
        if sharing > 1 and self.weights.transport in ("nccl", "gloo"):
            raise ValueError(
                f"weights.transport is {self.weights.transport!r}, but with allocation.tensor_parallel {sharing} no trainer has "
                "the whole model to broadcast; use 'object_store' or 'directory'"
            )
        if rollout.engine.tensor_parallel > 1:
            raise ValueError(
                f"rollout.engine.tensor_parallel is {rollout.engine.tensor_parallel}, but a rollout worker gets one accelerator, on "
                "which the whole model has to fit; use 1, and allocation.tensor_parallel for trainers that share a model"
            )
        if self.deterministic:
            require_determinism(self)
        allocation = self.allocation
        if allocation.mode == "auto" and len(allocation.reachable) == 1:
            raise ValueError(
                f"allocation.mode is 'auto', but of {allocation.accelerators} accelerators allocation.min_rollout keeps "
                f"{allocation.min_rollout} and allocation.min_trainer {allocation.min_trainer}: there is none to move; "
                "use more of them, or 'advise'"
            )
        return self

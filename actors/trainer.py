"""The trainer: one rank of the policy update behind a Ray actor.

Owns a `Learner` and its place in the trainers' group. Methods that set up, train, save or load are called on all ranks,
with the same arguments but the part of the batch; `host` and `broadcast` are for rank 0, `publish` and `logprobs` for all
that share the first copy of the model. A group of another size is
formed by `hand_over` on all ranks of the old one, then `regroup` on all of the new one; a rank that joins was made ready
by `load`. Until `regroup` a rank of the old group has lost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch
from ray.actor import ActorHandle
from transformers import PreTrainedModel

from rl_system.algorithms.gae import needs_critic
from rl_system.algorithms.kl import needs_reference
from rl_system.config.run import RunConfig
from rl_system.executor import CostModel
from rl_system.records import TrainBatch, Weights
from rl_system.training.checkpoint import load_checkpoint, save_checkpoint
from rl_system.training.checkpoint_directory import open_checkpoint
from rl_system.training.learner import Learner
from rl_system.training.loading import load_model, load_tokenizer
from rl_system.training.model_files import check_saving
from rl_system.training.publishing import ChunkPublisher, publish_directory
from rl_system.training.ranks import Ranks, connect_store, host_store
from rl_system.training.resharding import (
    Handover,
    counters_of,
    cut_states,
    parameters_of,
    set_counters,
    take_parameters,
    take_states,
)
from rl_system.training.tensor_parallel import TensorGroup, deal_out, parallelize
from rl_system.training.weights import saved_tensors

if TYPE_CHECKING:
    from actors.engine.broadcast import WeightBroadcast


@ray.remote(concurrency_groups={"signs_of_life": 1})
class Trainer:
    """Rank `rank` of `size`, training the model in `model_directory`, whose parameters are policy `version`."""

    def __init__(self, rank: int, size: int, config: RunConfig, model_directory: str, version: int = 0) -> None:
        torch.manual_seed(config.seed)
        self.rank, self.size, self.config, self.version = rank, size, config, version
        self.model_config = config.model.model_copy(update={"path": model_directory})
        self.started_from = model_directory
        """The model that the run began with, also after a resume: where its reference policy stays."""
        self.learner: Learner | None = None
        self._model: PreTrainedModel | None = None
        """Loaded, and without a place in a group yet."""
        self._ranks: Ranks | None = None
        self._sharing = TensorGroup()
        """The ranks that share a copy of the model with this one."""
        self._store: torch.distributed.Store | None = None
        weights = config.weights
        self._chunks = ChunkPublisher(weights.chunk_mib << 20, weights.verify, ray.put, ray.get)
        self._broadcast: WeightBroadcast | None = None
        """The sender's end of the group that it last broadcast to."""

    @ray.method(concurrency_group="signs_of_life")
    def sign_of_life(self) -> None:
        """Answers beside an update as well."""

    def host(self, address: str | None = None, size: int | None = None) -> tuple[str, int]:
        """Open the place where `size` ranks meet (default: those of the constructor), at `address` of this node (by
        default the one Ray knows it by).

        Returns address and port, for every rank's `setup` or `regroup`.
        """
        address = address or ray.util.get_node_ip_address()
        self._store = host_store(address, size or self.size, self.config.optimizer.rank_timeout_s)
        return address, self._store.port

    def load(self) -> None:
        """Load what `setup` or `regroup` goes on with."""
        # Here, because it is a matter of each thread, and the constructor's is not the one that computes.
        torch.set_num_threads(self.config.allocation.trainer_threads)
        self.tokenizer = load_tokenizer(self.model_config)
        self._model = load_model(self.model_config)
        check_saving(self._model, self.tokenizer)

    def setup(self, meeting: tuple[str, int] | None = None) -> None:
        """Load the model and join the group that meets at `meeting` (None: there is one trainer alone)."""
        self.load()
        timeout_s = self.config.optimizer.rank_timeout_s
        if meeting is not None and self._store is None:
            self._store = connect_store(*meeting, self.size, timeout_s)
        self._ranks = Ranks.join(self.rank, self.size, self._store, timeout_s)
        self.learner = self._make_learner(self._ranks)

    def hand_over(self, size: int) -> Handover:
        """What a group of `size` ranks needs of this one, by reference. Nothing changes here."""
        first = self.learner.ranks.rank == 0
        return Handover(
            shards=[ray.put(shards) for shards in cut_states(self.learner, size)],
            parameters=ray.put(parameters_of(self.learner)) if first else None,
            counters=counters_of(self.learner),
            started_from=self.started_from,
        )

    def regroup(
        self, rank: int, size: int, meeting: tuple[str, int] | None, first: Handover, shards: Sequence[ray.ObjectRef]
    ) -> None:
        """Become rank `rank` of the group of `size` that meets at `meeting`, with the states of the old group.

        first: what its first rank handed over. shards: all that hold any of this rank's new share.
        """
        self._leave()
        timeout_s = self.config.optimizer.rank_timeout_s
        if meeting is None:
            self._store = None
        elif rank > 0:
            self._store = connect_store(*meeting, size, timeout_s)
        self._ranks = Ranks.join(rank, size, self._store, timeout_s, self.config.allocation.join_timeout_s)
        if self.learner is not None:
            self.learner.regroup(self._ranks)
        else:
            self.started_from = first.started_from
            self.learner = self._make_learner(self._ranks)
            take_parameters(self.learner, ray.get(first.parameters))
        take_states(self.learner, ray.get(list(shards)))
        set_counters(self.learner, first.counters)

    def update(self, parts: Sequence[ray.ObjectRef]) -> dict[str, float]:
        """Train on this rank's part of each minibatch in turn; the parameters are the next policy version then.

        Returns metrics of the whole batch, the same on every rank.
        """
        return self.learner.update(ray.get(list(parts)))

    def publish(self) -> Weights | None:
        """The parameters as `weights.transport` wants them, from the first of the ranks that share a model; all of them
        are asked. When it returns, the next update may begin.
        """
        version, transport = self.learner.version, self.config.weights.transport
        if transport in ("nccl", "gloo"):
            return Weights(version, sender=ray.get_runtime_context().current_actor)
        tensors = saved_tensors(self.learner.model)
        if not tensors:
            return None  # the first of the ranks that share the model has all of them
        if transport == "directory":
            return publish_directory(tensors, version, self.config.directory / "weights")
        return self._chunks.publish(tensors, version)

    def broadcast(self, workers: Sequence[ActorHandle]) -> list[dict[str, float]]:
        """Send the parameters as they are now to `workers`; what each of them reports. Raises what went wrong first: then
        those that had begun are broken.
        """
        # vLLM is a heavy import that only a trainer that broadcasts needs.
        from actors.engine.broadcast import WeightBroadcast

        if self._broadcast is not None and self._broadcast.workers != list(workers):
            self._broadcast.close()
            self._broadcast = None
        if self._broadcast is None:
            self._broadcast = WeightBroadcast(
                self.learner.model,
                workers,
                tensor_parallel=self.config.rollout.engine.tensor_parallel,
                address=ray.util.get_node_ip_address(),
                timeout_s=self.config.weights.timeout_s,
            )
        sender, self._broadcast = self._broadcast, None
        reports = sender.send(self.learner.version)
        self._broadcast = sender  # one that failed is not used again
        return reports

    def logprobs(self, batch: TrainBatch, temperature: float | None = None) -> np.ndarray:
        """See `Learner.logprobs`."""
        return self.learner.logprobs(batch, temperature)

    def cost_model(self) -> CostModel:
        """What the executor has learnt about its own speed; what it began with where no choice may hang on the clock."""
        learnt = self.learner.executor.cost_model
        return CostModel(learnt.shape) if self.config.deterministic else learnt

    def where_it_started(self) -> str:
        """The directory of the model that the run began with."""
        return self.started_from

    def save_checkpoint(
        self, checkpoints: Path, step: int, state: Mapping[str, Any], blobs: Mapping[str, bytes]
    ) -> Path:
        """See `save_checkpoint` of `rl_system.training.checkpoint`."""
        return save_checkpoint(
            self.learner,
            self.tokenizer,
            checkpoints,
            run=self.config.name,
            step=step,
            started_from=self.started_from,
            state=state,
            blobs=blobs,
            keep=self.config.checkpoint.keep,
        )

    def load_checkpoint(self, path: Path, started_from: Path | None = None) -> None:
        """Go on from the checkpoint at `path`, written by any number of ranks.

        started_from: where the model that the run began with lies now; None: where it did then.
        """
        checkpoint = open_checkpoint(path, self.config.name)
        load_checkpoint(self.learner, checkpoint)
        self.started_from = checkpoint.learner["started_from"] if started_from is None else str(started_from)
        if self.learner.reference is not None:
            self.learner.set_reference(self._load_share(self.started_from))

    def close(self) -> None:
        """Leave the group."""
        self._leave()
        self._store = None

    def _load_share(self, path: str) -> PreTrainedModel:
        """This rank's share of the model at `path`: all of it where none is shared."""
        return parallelize(load_model(self.model_config.model_copy(update={"path": path})), self._sharing)

    def _leave(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def _make_learner(self, world: Ranks) -> Learner:
        config, model = self.config, self._model
        self._model = None
        ranks, self._sharing = deal_out(world, config.allocation.tensor_parallel)
        return Learner.of(
            config,
            parallelize(model, self._sharing),
            ranks=ranks,
            world=world,
            reference=self._load_share(self.started_from) if needs_reference(config.algorithm) else None,
            critic=self._load_share(self.model_config.path) if needs_critic(config.algorithm) else None,
            version=self.version,
        )

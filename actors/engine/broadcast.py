"""Weights by broadcast: from a trainer's device to every rollout worker's, without a host in between.

Owns the trainer's side of vLLM's own weight transfer: one group of the sending trainer (rank 0) and all processes of all
workers, NCCL on CUDA (`weights.transport: nccl`) and gloo on CPUs (`gloo`). The workers' side is
`EngineSession.join_broadcast` and the calls after it.

Invariants: each process of each worker has its own rank in the group; ranks do not depend on the order in which workers
answer. A broadcast that did not end well leaves no worker halfway through an update: those that had begun are broken.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import RayError
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from actors.engine.gloo_transfer import GlooSenderInitInfo
from actors.side import last_line
from rl_system.training.weights import saved_tensors

logger = logging.getLogger(__name__)

SENDER_RANKS = 1
ABANDON_TIMEOUT_S = 10.0


def rank_offset(worker: int, tensor_parallel: int) -> int:
    """Rank of the first process of worker `worker` in the group."""
    return SENDER_RANKS + worker * tensor_parallel


class ModelSource(WeightSource):
    """Parameters and saved buffers as a checkpoint holds them; tied ones once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, each.dtype, tuple(each.shape)) for name, each in saved_tensors(self._model).items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from saved_tensors(self._model).items()


class WorkersClient:
    """What vLLM's sender calls on the receiving side, for several workers at once. Blocks, as the sender does."""

    def __init__(self, workers: Sequence[ActorHandle], tensor_parallel: int, timeout_s: float) -> None:
        self.version = 0
        """The version that the next broadcast carries."""
        self.reports: list[dict[str, float]] = []
        """Of the workers about the last broadcast."""
        self._workers = list(workers)
        self._tensor_parallel = tensor_parallel
        self._timeout_s = timeout_s

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._all(
            worker.join_broadcast.remote(init_info | {"rank_offset": rank_offset(index, self._tensor_parallel)})
            for index, worker in enumerate(self._workers)
        )

    def start_weight_update(self) -> None:
        self._all(worker.begin_broadcast.remote() for worker in self._workers)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._all(worker.receive_broadcast.remote(update_info) for worker in self._workers)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.reports = self._all(worker.end_broadcast.remote(self.version) for worker in self._workers)

    def abandon(self) -> None:
        """Have every worker that is still there give up on a broadcast that it has begun."""
        for worker in self._workers:
            try:
                ray.get(worker.abandon_broadcast.remote(), timeout=ABANDON_TIMEOUT_S)
            except RayError as error:
                logger.warning("a rollout worker did not give up on a broadcast: %s", last_line(error))

    def _all(self, calls) -> list[Any]:
        return ray.get(list(calls), timeout=self._timeout_s)


class WeightBroadcast:
    """The sender's end, in the trainer process that holds `model` on its device. Made anew when the workers change.

    address: of this node, as the workers reach it. timeout_s: longest that joining, or one step of a broadcast, takes.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        workers: Sequence[ActorHandle],
        *,
        tensor_parallel: int,
        address: str,
        timeout_s: float,
    ) -> None:
        self.workers = list(workers)
        self._client = WorkersClient(workers, tensor_parallel, timeout_s)
        size = rank_offset(len(workers), tensor_parallel)
        on_gpu = next(model.parameters()).device.type == "cuda"
        self._engine = WeightTransferTrainerFactory.trainer_init(
            _nccl(address, size) if on_gpu else GlooSenderInitInfo(address, size, timeout_s, rank=0),
            client=self._client,
            source=ModelSource(model),
        )

    def send(self, version: int) -> list[dict[str, float]]:
        """Send the model's parameters as `version`; returns what every worker reports once it serves them.

        Raises what went wrong first. Workers that had begun are broken then, and this object is of no more use.
        """
        self._client.version = version
        try:
            self._engine.send_weights()
        except BaseException:
            self._client.abandon()
            raise
        return self._client.reports

    def close(self) -> None:
        self._engine.shutdown()


def _nccl(address: str, size: int) -> TrainerInitInfo:
    """vLLM opens the meeting place itself, and wants to be told a free port."""
    with socket.create_server((address, 0)) as probe:
        port = probe.getsockname()[1]
    return NCCLTrainerInitInfo(address, port, size, rank=0)

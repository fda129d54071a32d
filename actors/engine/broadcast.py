"""Weights by NCCL broadcast: from a trainer's device to every rollout worker's, without a host in between.

Owns the trainer's side of vLLM's own weight transfer: one NCCL group of the sending trainer (rank 0) and all ranks of
all workers. CUDA only, chosen by `weights.transport: nccl`. The workers' side is `EngineSession.join_broadcast` and the
three calls after it.

Invariant: each process of each worker has its own rank in the group; ranks do not depend on the order in which workers
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
import torch
from ray.actor import ActorHandle
from vllm.distributed.weight_transfer.base import ModuleSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

SENDER_RANKS = 1


def rank_offset(worker: int, tensor_parallel: int) -> int:
    """Rank of the first process of worker `worker` in the group."""
    return SENDER_RANKS + worker * tensor_parallel


class WorkersClient:
    """What vLLM's sender calls on the receiving side, for several workers at once. Blocks, as the sender does."""

    def __init__(self, workers: Sequence[ActorHandle], tensor_parallel: int, timeout_s: float) -> None:
        self.version = 0
        """The version that the next broadcast carries."""
        self._workers = list(workers)
        self._tensor_parallel = tensor_parallel
        self._timeout_s = timeout_s

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._wait(
            worker.join_broadcast.remote(init_info | {"rank_offset": rank_offset(index, self._tensor_parallel)})
            for index, worker in enumerate(self._workers)
        )

    def start_weight_update(self) -> None:
        self._wait(worker.begin_broadcast.remote() for worker in self._workers)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._wait(worker.receive_broadcast.remote(update_info) for worker in self._workers)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._wait(worker.end_broadcast.remote(self.version) for worker in self._workers)

    def _wait(self, calls) -> None:
        ray.get(list(calls), timeout=self._timeout_s)


class WeightBroadcast:
    """The sender's end, in the trainer process that holds `model` on its device. Made anew when the workers change."""

    def __init__(
        self,
        model: torch.nn.Module,
        workers: Sequence[ActorHandle],
        *,
        tensor_parallel: int,
        address: str,
        port: int,
        timeout_s: float,
    ) -> None:
        self._client = WorkersClient(workers, tensor_parallel, timeout_s)
        self._engine = WeightTransferTrainerFactory.trainer_init(
            NCCLTrainerInitInfo(
                master_address=address,
                master_port=port,
                world_size=rank_offset(len(workers), tensor_parallel),
                rank=0,
            ),
            client=self._client,
            source=ModuleSource(model),
        )

    def send(self, version: int) -> None:
        """Send the model's parameters as `version`; returns when every worker serves them."""
        self._client.version = version
        self._engine.send_weights()

    def close(self) -> None:
        self._engine.shutdown()

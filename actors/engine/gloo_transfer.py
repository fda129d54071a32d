"""Weights by gloo broadcast between processes on CPUs: what vLLM's NCCL backend is between GPUs.

Owns both ends, in the terms of vLLM's weight transfer; who calls what and when is `broadcast`'s business and the same for
both backends. The sender runs vLLM's own NCCL sender but for the group and the collective itself, so that everything
around them is exercised where there is no GPU.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferInitInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine, NCCLWeightTransferUpdateInfo

from actors.engine.reload import ReloadingEngine
from rl_system.training.ranks import connect_store, host_store, interface_towards

GLOO_BACKEND = "gloo"
SENDER = 0


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """A receiver's view of the group. rank_offset: rank of its first process."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    timeout_s: float


@dataclass
class GlooSenderInitInfo(TrainerInitInfo):
    """The sender's view of the group. It opens the meeting place itself, on a free port of its address."""

    backend: ClassVar[str] = GLOO_BACKEND

    master_address: str
    world_size: int
    timeout_s: float


class GlooReceiver(ReloadingEngine[GlooInitInfo, NCCLWeightTransferUpdateInfo]):
    """Of one of the engine's processes; loads tensors one by one as they arrive."""

    init_info_cls = GlooInitInfo
    update_info_cls = NCCLWeightTransferUpdateInfo
    group: dist.ProcessGroupGloo | None = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        store = connect_store(
            init_info.master_address, init_info.master_port, init_info.world_size, init_info.timeout_s
        )
        rank = init_info.rank_offset + self.parallel_config.rank
        self.group = _join(store, rank, init_info.world_size, init_info.timeout_s)

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        self.model.load_weights(self._arriving(update_info))

    def _arriving(self, info: NCCLWeightTransferUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            _broadcast(self.group, tensor)
            yield name, tensor

    def shutdown(self) -> None:
        self.group = None


class GlooSender(NCCLTrainerWeightTransferEngine):
    init_info_cls = GlooSenderInitInfo

    @classmethod
    def trainer_init(
        cls, init_info: GlooSenderInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> Self:
        engine = cls(client=client, source=source, is_sender=init_info.is_sender, packed=False)
        if not engine.is_sender:
            return engine
        store = host_store(init_info.master_address, init_info.world_size, init_info.timeout_s)
        receivers = GlooInitInfo(
            init_info.master_address, store.port, SENDER + 1, init_info.world_size, init_info.timeout_s
        )
        with ThreadPoolExecutor(max_workers=1) as beside:
            joined = beside.submit(client.init_weight_transfer_engine, asdict(receivers))
            engine.model_update_group = _join(store, SENDER, init_info.world_size, init_info.timeout_s)
            joined.result()
        return engine

    def _broadcast(self, source: WeightSource, meta: list[ParamMeta]) -> None:
        for _, tensor in self._checked_iter(source, meta):
            _broadcast(self.model_update_group, tensor)

    def shutdown(self) -> None:
        self.model_update_group = None


def _join(store: dist.TCPStore, rank: int, size: int, timeout_s: float) -> dist.ProcessGroupGloo:
    os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(store.host)
    return dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(seconds=timeout_s))


def _broadcast(group: dist.ProcessGroupGloo, tensor: torch.Tensor) -> None:
    """From the sender into everybody's `tensor`; returns when it is there. Raises RuntimeError where a process is gone."""
    options = dist.BroadcastOptions()
    options.rootRank = SENDER
    group.broadcast([tensor.detach().contiguous()], options).wait()


if GLOO_BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(GLOO_BACKEND, GlooReceiver)
if GLOO_BACKEND not in WeightTransferTrainerFactory._registry:
    WeightTransferTrainerFactory.register_engine(GLOO_BACKEND, GlooSender)

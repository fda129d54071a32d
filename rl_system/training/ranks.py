"""The trainers as a group: who is there, and the few collectives that a step needs.

No collective happens inside a model's forward or backward. Every rank calls the same methods in the same order, whether
its part of the batch is empty or not; a rank that stays away makes the others fail after `timeout_s`, never hang.
"""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any, Self

import psutil
import torch
import torch.distributed as dist


class Ranks:
    """This process's place among `size` trainers. With one trainer there is no process group and nothing is sent.

    group: where these are not all ranks there are, their process group.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self.group = rank, size, group

    @classmethod
    def join(
        cls, rank: int, size: int, store: dist.TCPStore | None, timeout_s: float, arrive_s: float | None = None
    ) -> Self:
        """Form the group; returns when all `size` ranks are there. `store` is needed for more than one.

        arrive_s: longest wait for all of them to arrive (default: timeout_s), a RuntimeError after that.
        """
        if size > 1:
            if store is None:
                raise ValueError("a group of several ranks needs the store that they meet at")
            store.set(f"arrived/{rank}", "")
            everyone = [f"arrived/{each}" for each in range(size)]
            store.wait(everyone, datetime.timedelta(seconds=arrive_s or timeout_s))
            os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(store.host)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=datetime.timedelta(seconds=timeout_s),
            )
        return cls(rank, size)

    def reduce_scatter(self, bucket: torch.Tensor, own: torch.Tensor) -> None:
        """Sum `bucket` over the ranks into `own`, this rank's equal share of it and a view into it, in place.

        The rest of the bucket holds garbage afterwards.
        """
        if self.size > 1:
            dist.reduce_scatter_single(own, bucket, group=self.group)

    def all_gather(self, bucket: torch.Tensor, own: torch.Tensor) -> None:
        """Fill `bucket` with every rank's `own`, an equal share of it and a view into it, in place."""
        if self.size > 1:
            dist.all_gather_single(bucket, own, group=self.group)

    def sum(self, values: list[float], device: torch.device) -> list[float]:
        """Elementwise sum over the ranks in float64; every rank gets the same bits."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's `value`, in the order of the ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.group)

    def close(self) -> None:
        """Leave all groups. The process may join others afterwards."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def host_store(host: str, size: int, timeout_s: float) -> dist.TCPStore:
    """The store at which `size` ranks meet, on a free port of the address `host` alone. Rank 0 keeps it alive.

    The socket is bound here because the store on its own would listen on every interface of the machine.
    """
    listener = socket.create_server((host, 0))
    host, port = listener.getsockname()[:2]
    return dist.TCPStore(
        host,
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )


def connect_store(host: str, port: int, size: int, timeout_s: float) -> dist.TCPStore:
    """Another rank's view of `host_store`."""
    timeout = datetime.timedelta(seconds=timeout_s)
    return dist.TCPStore(host, port, size, is_master=False, wait_for_workers=False, timeout=timeout)


def interface_towards(host: str) -> str:
    """The network interface over which this machine reaches `host`: the only one that ranks should listen on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # Sends nothing; asks the routing table for the local address.
        local = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == local for address in addresses):
            return name
    raise OSError(f"no network interface has the address {local}, from which {host} is reached")

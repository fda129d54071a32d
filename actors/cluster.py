"""The accelerators of a run: which Ray resource they are, whether the cluster has enough, and who gets which.

One placement group holds one bundle an accelerator. Bundles `[0, rollout)` start with rollout workers, the rest with
trainers; a device that changes sides keeps its bundle. On CUDA machines an accelerator is a `GPU`; elsewhere it is an
`accelerator_slot`, a custom resource that `ray start --resources '{"accelerator_slots": 2}'` declares, so that everything
runs for real without any.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_system.allocation.devices import Devices
from rl_system.allocation.switch import Side
from rl_system.config.run import RunConfig
from rl_system.errors import UserError

SLOT = "accelerator_slots"
PLACEMENT_TIMEOUT_S = 60.0


def accelerator_resource(config: RunConfig) -> str:
    return "GPU" if config.model.device == "cuda" else SLOT


def describe_placement(config: RunConfig) -> str:
    """What the run will occupy, for `--dry-run`."""
    allocation, resource = config.allocation, accelerator_resource(config)
    lines = [f"placement: {allocation.accelerators} bundles of one {resource} each"]
    lines += [f"  bundle {i}: rollout worker {i}" for i in range(allocation.rollout)]
    lines += [f"  bundle {allocation.rollout + i}: trainer {i}" for i in range(allocation.trainer)]
    lines += ["  no bundle (CPU only): controller, environment pool, reward, dispatcher"]
    return "\n".join(lines)


class Accelerators:
    """The run's placement group. Devices are known by their bundle's index; `devices` says whose they are."""

    def __init__(self, config: RunConfig, group: PlacementGroup) -> None:
        self.resource = accelerator_resource(config)
        self.group = group
        self.devices = Devices(config.allocation.start)

    @classmethod
    async def reserve(cls, config: RunConfig) -> Accelerators:
        """Raises UserError where the cluster has too few accelerators, or they stay occupied."""
        resource, wanted = accelerator_resource(config), config.allocation.accelerators
        present = ray.cluster_resources().get(resource, 0)
        if present < wanted:
            raise UserError(
                f"allocation.rollout {config.allocation.rollout} and allocation.trainer {config.allocation.trainer} need "
                f"{wanted} {resource}, but the Ray cluster has {present:g}; ask for fewer, or start Ray with "
                + ("more GPUs" if resource == "GPU" else f"--resources '{{\"{SLOT}\": {wanted}}}'")
            )
        group = placement_group([{resource: 1}] * wanted, strategy="PACK")
        try:
            await asyncio.wait_for(group.ready(), PLACEMENT_TIMEOUT_S)
        except TimeoutError:
            remove_placement_group(group)
            free = ray.available_resources().get(resource, 0)
            raise UserError(
                f"the run needs {wanted} {resource} and only {free:g} of the cluster's {present:g} are free; end the "
                "run that occupies them (ray job list, ray job stop)"
            ) from None
        return cls(config, group)

    def options(self, device: int, side: Side) -> dict[str, Any]:
        """Actor options that place one actor of `side` on its accelerator `device`.

        An actor that still occupies the device keeps the new one waiting: a bundle holds one.
        """
        if self.devices.owner(device) is not side:
            raise RuntimeError(f"device {device} is {self.devices.owner(device) or 'nobody'}'s, not {side}'s")
        resource = {"num_gpus": 1} if self.resource == "GPU" else {"resources": {self.resource: 1}}
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=device)
        return {"num_cpus": 0, "scheduling_strategy": strategy} | resource

    def release(self) -> None:
        remove_placement_group(self.group)


def connect(config: RunConfig) -> None:
    """Join the cluster of RAY_ADDRESS, or start a private one with as many accelerator slots as the run needs."""
    settings: dict[str, Any] = {"log_to_driver": config.tracking.worker_logs, "logging_level": logging.WARNING}
    if not os.environ.get("RAY_ADDRESS"):
        settings["include_dashboard"] = False
        if config.model.device == "cpu":
            settings["resources"] = {SLOT: config.allocation.accelerators}
    ray.init(**settings)


def disconnect() -> None:
    """Leave the cluster; a private one ends."""
    ray.shutdown()

"""The accelerators of a run: which Ray resource they are, whether the cluster has enough, and who gets which.

One placement group holds one bundle an accelerator. Bundles `[0, rollout)` start with rollout workers, the rest with
trainers; a device that changes sides keeps its bundle. Placement groups cannot grow, so an accelerator that joins the
cluster during the run (`allocation.elastic`) gets one of its own. On CUDA machines an accelerator is a `GPU`; elsewhere it is an
`accelerator_slot`, a custom resource that `ray start --resources '{"accelerator_slots": 2}'` declares, so that everything
runs for real without any.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray._private.state import state as ray_state  # the draining nodes have no public interface; Ray Train reads them here
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.nodes import Newcomers
from rl_system.allocation.devices import Devices
from rl_system.allocation.observation import Split
from rl_system.allocation.switch import Side
from rl_system.config.run import RunConfig
from rl_system.errors import UserError

SLOT = "accelerator_slots"
NODE_LABEL = "ray.io/node-id"
"""Ray's own label of every node."""
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
    """The run's bundles. Devices are known by numbers, those of the start by their bundle's index; `devices` says whose they
    are.

    placed: node of each device, as of the last `look`; Ray may place the bundles of a node that died elsewhere. usable:
    nodes that are alive and do not drain. newcomers: judges nodes that join; all are fit where None.
    """

    def __init__(self, config: RunConfig, group: PlacementGroup, start: Split) -> None:
        self.resource = accelerator_resource(config)
        self.devices = Devices(start)
        self._bundles = {device: (group, device) for device in range(sum(start))}
        self._sought: tuple[PlacementGroup, str] | None = None
        self._nodes_at_start = {node["NodeID"] for node in ray.nodes()}
        self.placed: dict[int, str] = {}
        self.usable: frozenset[str] = frozenset()
        self.newcomers: Newcomers | None = None

    @classmethod
    async def reserve(cls, config: RunConfig, start: Split | None = None) -> Accelerators:
        """start: the split to begin with (default: the configured one).

        Raises UserError where the cluster has too few accelerators, or they stay occupied.
        """
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
        except asyncio.CancelledError:
            remove_placement_group(group)
            raise
        except TimeoutError:
            remove_placement_group(group)
            free = ray.available_resources().get(resource, 0)
            raise UserError(
                f"the run needs {wanted} {resource} and only {free:g} of the cluster's {present:g} are free; end the "
                "run that occupies them (ray job list, ray job stop)"
            ) from None
        return cls(config, group, start or config.allocation.start)

    def options(self, device: int, side: Side) -> dict[str, Any]:
        """Actor options that place one actor of `side` on its accelerator `device`.

        An actor that still occupies the device keeps the new one waiting: a bundle holds one.
        """
        if self.devices.owner(device) is not side:
            raise RuntimeError(f"device {device} is {self.devices.owner(device) or 'nobody'}'s, not {side}'s")
        resource = {"num_gpus": 1} if self.resource == "GPU" else {"resources": {self.resource: 1}}
        group, bundle = self._bundles[device]
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        return {"num_cpus": 0, "scheduling_strategy": strategy} | resource

    async def look(self) -> None:
        """See what became of the cluster: `placed` and `usable` are of now, and a free accelerator of a node that has
        joined since the start is asked for. One at a time: it is among `placed` at a later look.
        """
        await asyncio.to_thread(self._look)

    def is_leaving(self, device: int) -> bool:
        """As of the last look."""
        return self.placed.get(device) not in self.usable

    def release(self) -> None:
        groups = {group.id: group for group, _ in self._bundles.values()}
        if self._sought is not None:
            groups[self._sought[0].id] = self._sought[0]
        for group in groups.values():
            remove_placement_group(group)

    def _look(self) -> None:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        draining = ray_state.get_draining_nodes()
        self.usable = frozenset(node["NodeID"] for node in nodes) - draining.keys()
        self._take_sought()
        tables = {group.id: placement_group_table(group) for group, _ in self._bundles.values()}
        self.placed = {
            device: node
            for device, (group, bundle) in self._bundles.items()
            if (node := tables[group.id]["bundles_to_node_id"].get(bundle))
        }
        if self._sought is None:
            self._seek(nodes)

    def _take_sought(self) -> None:
        """The accelerator that was asked for becomes a device, or is given up with its node."""
        if self._sought is None:
            return
        group, node = self._sought
        if node not in self.usable:
            remove_placement_group(group)
            self._sought = None
        elif placement_group_table(group)["state"] == "CREATED":
            self._bundles[max(self._bundles) + 1] = (group, 0)
            self._sought = None

    def _seek(self, nodes: list[dict[str, Any]]) -> None:
        free = available_resources_per_node()
        for node in nodes:
            name = node["NodeID"]
            joined = name in self.usable and name not in self._nodes_at_start
            offered = joined and free.get(name, {}).get(self.resource, 0) >= 1
            if offered and (self.newcomers is None or self.newcomers.is_fit(name)):
                group = placement_group([{self.resource: 1}], bundle_label_selector=[{NODE_LABEL: name}])
                self._sought = (group, name)
                return

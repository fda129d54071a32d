"""What a run needs of a node, part by part, given which of its actors are placed there.

Counts what is certain: models and their optimizer states, K/V caches of a stated size, weights on their way, and the processes
themselves. What depends on the batch (activations, episodes, temporaries) comes on top.

`place` says which memory a part takes. Parts on a device are told for whoever asks about devices; the host's share is what
`rl_system.machine.fit` checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from rl_system.algorithms.gae import needs_critic
from rl_system.algorithms.kl import needs_reference
from rl_system.config.run import RunConfig

GIB = 1 << 30
WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2}
"""Bytes of a parameter in the compute dtype."""
ENGINE = int(1.25 * GIB)
"""Of a rollout worker's processes beside model and cache. This and what follows was measured with a model that weighs nothing, as
memory that a process shares with no other."""
TRAINER = int(0.5 * GIB)
DRIVER, RAY = int(0.6 * GIB), int(0.35 * GIB)
ACTORS = int(1.15 * GIB)
"""Of controller, dispatcher, reward actor and environment pool together."""
ENVIRONMENTS = int(0.22 * GIB)
"""Of one worker process for environments, without the environments."""
USER_CACHE = GIB
"""K/V cache of the user's model where a run on CPUs serves it."""


class Place(StrEnum):
    MEMORY = "memory"
    SHARED = "shared memory"
    """Which is memory too."""
    DEVICE = "device memory"


@dataclass(frozen=True, slots=True)
class Part:
    """size: bytes."""

    what: str
    size: int
    place: Place = Place.MEMORY


@dataclass(frozen=True, slots=True)
class ActorNeeds:
    """Of one actor, or `count` alike."""

    who: str
    parts: tuple[Part, ...]
    count: int = 1

    def size(self, *places: Place) -> int:
        return self.count * sum(part.size for part in self.parts if part.place in places)


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """Of all that a run has on one node."""

    actors: tuple[ActorNeeds, ...]

    @property
    def memory(self) -> int:
        """Bytes of the host's, shared memory among them."""
        return self._size(Place.MEMORY, Place.SHARED)

    @property
    def shared_memory(self) -> int:
        return self._size(Place.SHARED)

    @property
    def in_words(self) -> str:
        """What takes the host's memory, largest first, in GiB."""
        places = (Place.MEMORY, Place.SHARED)
        words = []
        for actor in sorted(self.actors, key=lambda each: -each.size(*places)):
            parts = ", ".join(f"{part.what} {part.size / GIB:.2f}" for part in actor.parts if part.place in places)
            words.append(f"{actor.count} {actor.who}s with each {parts}" if actor.count > 1 else f"{actor.who}: {parts}")
        return "; ".join(words)

    def _size(self, *places: Place) -> int:
        return sum(actor.size(*places) for actor in self.actors)


@dataclass(frozen=True, slots=True)
class RunNeeds:
    """parameters: of the model, in elements. user_parameters: of the user's model where the driver serves that too. started:
    whether driver and Ray run already, so that what they take is no longer available anyway."""

    config: RunConfig
    parameters: int
    user_parameters: int = 0
    started: bool = False

    def rollout(self) -> ActorNeeds:
        """Of one rollout worker."""
        engine = self.config.rollout.engine
        place, sharing = self._place, engine.tensor_parallel
        parts = [Part("processes", ENGINE), Part("parameters", self._weights // sharing, place)]
        if engine.kv_cache_gib is not None:  # else the engine takes what is left
            parts.append(Part("K/V cache", int(engine.kv_cache_gib * GIB), place))
        return ActorNeeds("rollout worker", tuple(parts))

    def trainer(self, trainers: int) -> ActorNeeds:
        """Of one of `trainers`, over which optimizer states are sharded (ZeRO-1)."""
        sharing = self.config.allocation.tensor_parallel
        place, models = self._place, self._trained
        parts = [
            Part("process", TRAINER),
            Part("parameters", models * self._weights // sharing, place),
            Part("gradients", models * self.parameters * self._accumulated // sharing, place),
            Part("optimizer states", models * self._states // trainers, place),
        ]
        if needs_reference(self.config.algorithm):
            parts.append(Part("reference policy", self._weights // sharing, place))
        return ActorNeeds("trainer", tuple(parts))

    def driver(self) -> ActorNeeds:
        """Of the node that the command runs on, whoever else is there."""
        parts = [] if self.started else [Part("driver", DRIVER), Part("Ray", RAY)]
        parts.append(Part("actors without accelerators", ACTORS))
        if processes := self.config.environment.processes:
            parts.append(Part("environment processes", processes * ENVIRONMENTS))
        return ActorNeeds("what runs once", tuple(parts))

    def warm_start(self) -> NodeNeeds:
        """Of the supervised phase, which trains in the driver's process before anything else is there."""
        size = self._weights + self.parameters * self._accumulated + self._states
        return NodeNeeds((ActorNeeds("warm start", (Part("model and its training", size),)),))

    def on_node(self, rollouts: int, trainers: int, *, all_trainers: int, driver: bool) -> NodeNeeds:
        """Of a node with so many rollout workers and trainers, out of `all_trainers`, and perhaps the driver."""
        actors = [self.driver()] if driver else []
        if driver and self.user_parameters:
            model = Part("parameters", self.user_parameters * WIDTH["float32"])
            actors.append(ActorNeeds("user's model", (Part("processes", ENGINE), model, Part("K/V cache", USER_CACHE))))
        if rollouts:
            actors.append(_several(self.rollout(), rollouts))
        if trainers:
            actors.append(_several(self.trainer(all_trainers), trainers))
        if rollouts or trainers:
            actors += self._in_transit(rollouts, trainers)
        return NodeNeeds(tuple(actors))

    def most_on_node(self, accelerators: int, *, driver: bool, here: tuple[int, int] | None = None) -> NodeNeeds:
        """The most that a node with so many of the run's accelerators can come to need, whichever way the run moves them.

        here: the rollout workers and trainers that are there at the start, of a split that stays.
        """
        allocation, splits = self.config.allocation, self.config.allocation.reachable
        if len(splits) == 1:
            rollouts, trainers = here or tuple(allocation.start)
            return self.on_node(rollouts, trainers, all_trainers=allocation.trainer, driver=driver)
        possible = [
            self.on_node(accelerators - trainers, trainers, all_trainers=split.trainer, driver=driver)
            for split, trainers in product(splits, range(accelerators + 1))
            if trainers <= split.trainer and accelerators - trainers <= split.rollout
        ]
        return max(possible, key=lambda needs: needs.memory)

    def of_one(self) -> NodeNeeds:
        """The most that one more accelerator, of a node that had none, can come to need there."""
        trainers = self.config.allocation.trainer
        alone = [self.on_node(*here, all_trainers=trainers, driver=False) for here in ((1, 0), (0, 1))]
        return max(alone, key=lambda needs: needs.memory)

    def _in_transit(self, rollouts: int, trainers: int) -> Iterable[ActorNeeds]:
        """What the actors of a node share: new weights, and what trainers of another group leave."""
        if self.config.weights.transport == "object_store":
            parts = [Part("in the object store", self._weights)]
            if rollouts:
                parts.append(Part("in shared memory", self._weights, Place.SHARED))
            yield ActorNeeds("new weights", tuple(parts))
        if trainers and len(self.config.allocation.reachable) > 1:
            # Parameters and states travel, gradients are laid out anew beside the old ones.
            size = self._weights + self._states + self.parameters * self._accumulated
            yield ActorNeeds("move of a trainer", (Part("model and states", self._trained * size),))

    @property
    def _place(self) -> Place:
        return Place.MEMORY if self.config.model.device == "cpu" else Place.DEVICE

    @property
    def _trained(self) -> int:
        return 1 + needs_critic(self.config.algorithm)

    @property
    def _weights(self) -> int:
        return self.parameters * WIDTH[self.config.model.dtype]

    @property
    def _accumulated(self) -> int:
        """Bytes of a gradient, a moment or a master."""
        return max(WIDTH[self.config.model.dtype], WIDTH["float32"])

    @property
    def _states(self) -> int:
        """Two moments, and masters where the model computes in less."""
        masters = WIDTH[self.config.model.dtype] < self._accumulated
        return self.parameters * self._accumulated * (2 + masters)


def _several(needs: ActorNeeds, count: int) -> ActorNeeds:
    return ActorNeeds(needs.who, needs.parts, count)

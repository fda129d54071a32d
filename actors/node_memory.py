"""What room a run needs on every node, given where its accelerators turned out to be.

Preflight knows this machine alone; which nodes the accelerators are on is known once they are reserved. Each node is then asked
by `actors.nodes`, before anything starts there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from actors.cluster import Accelerators
from actors.nodes import driver_node
from rl_system.allocation.switch import Side
from rl_system.machine.fit import Room, settings_of
from rl_system.machine.needs import RunNeeds


def rooms(needs: RunNeeds, accelerators: Accelerators) -> dict[str, Room]:
    """By node, for the accelerators that are placed as of the last look. Ray and the driver run already."""
    needs = replace(needs, started=True)
    sides = {side: Counter(_nodes(accelerators, side)) for side in Side}
    wanted = {}
    for node in set().union(*sides.values()):
        here = (sides[Side.ROLLOUT][node], sides[Side.TRAINER][node])
        most = needs.most_on_node(sum(here), driver=node == driver_node(), here=here)
        wanted[node] = Room(most, settings_of(needs.config))
    return wanted


def room_of_a_newcomer(needs: RunNeeds) -> Room:
    return Room(replace(needs, started=True).of_one(), settings_of(needs.config))


def _nodes(accelerators: Accelerators, side: Side) -> list[str]:
    return [accelerators.placed[device] for device in accelerators.devices.of(side) if device in accelerators.placed]

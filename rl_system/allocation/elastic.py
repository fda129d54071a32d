"""Which accelerator joins or leaves a run next, when the cluster itself changes.

Pure: it is told who owns which device, where each of them is, and which nodes are there to stay, and answers with one
`Switch`, or with none. A device is *leaving* when its node drains or is gone.

The order keeps both sides running: what can leave leaves first; new devices come next, to a side whose last device is
leaving before any other; and only then is a device taken from the other side to stand in for the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rl_system.allocation.decision import Move
from rl_system.allocation.devices import Devices
from rl_system.allocation.observation import Split
from rl_system.allocation.switch import Side, Switch


def next_change(
    devices: Devices,
    placed: Mapping[int, str],
    usable: Collection[str],
    given_up: Mapping[int, str],
    place: Callable[[Split], Side],
) -> Switch | None:
    """placed: node of each device that is somewhere. usable: nodes that are alive and do not drain. given_up: devices that
    neither side could use, with their node then. place: which side a new device serves best at a split.
    """
    split = devices.split

    def leaves(device: int) -> bool:
        return placed.get(device) not in usable

    leaving = {side: [device for device in devices.of(side) if leaves(device)] for side in Side}
    for side in Side:
        if leaving[side] and len(devices.of(side)) > 1:
            return Switch(side, None, leaving[side][-1], split)
    in_need = next((side for side in Side if leaving[side]), None)
    for device in sorted(placed):
        if devices.owner(device) is None and not leaves(device) and given_up.get(device) != placed[device]:
            return Switch(None, in_need or place(split), device, split)
    if in_need is not None:
        move = Move.TO_ROLLOUT if in_need is Side.ROLLOUT else Move.TO_TRAINER
        staying = [device for device in devices.of(in_need.other) if not leaves(device)]
        if len(staying) > 1:
            return Switch.of(move, staying[-1], split)
    return None

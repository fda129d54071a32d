"""Accelerators that stand for devices of known speeds: how long to hold back what was done sooner.

A device is a queue that works off so many tokens a second. Owns no clock; it is told moments.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl_system.config.allocation import Pace


def pace_at(paces: Sequence[Pace], step: int) -> Pace | None:
    """The one in force after `step` policy updates; None where there is none at all."""
    return next((pace for pace in reversed(paces) if pace.step <= step), None)


class PacedDevices:
    """tokens_per_s: of one device; None: they are as fast as they can."""

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None
        self._free_at: dict[int, float] = {}

    def wait_s(self, device: int, tokens: int, began: float, now: float) -> float:
        """How much longer `device` takes for `tokens` of work that began at `began`, after all that it was given before."""
        if self.tokens_per_s is None:
            return 0.0
        free_at = max(self._free_at.get(device, began), began) + tokens / self.tokens_per_s
        self._free_at[device] = free_at
        return max(free_at - now, 0.0)

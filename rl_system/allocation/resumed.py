"""The split that a resumed run starts at: the one its checkpoint was taken at, unless that does not fit any more."""

from __future__ import annotations

from typing import Any

from rl_system.allocation.observation import Split
from rl_system.config.allocation import AllocationConfig


def split_state(split: Split, allocation: AllocationConfig) -> dict[str, list[int]]:
    """What a checkpoint says about the split: the one of that moment, and the one that was configured."""
    return {"now": list(split), "configured": list(allocation.start)}


def start_split(allocation: AllocationConfig, controller: dict[str, Any] | None) -> tuple[Split, str]:
    """Where a run starts, and why there. controller: its part of the checkpoint; None for a fresh run."""
    configured = allocation.start
    saved = (controller or {}).get("split")
    if saved is None:
        return configured, "as configured"
    now, before = Split(*saved["now"]), Split(*saved["configured"])
    if now == configured:
        return configured, "as configured, and as at the checkpoint"
    if before != configured:
        return configured, f"as configured anew, instead of {before}; the checkpoint was taken at {now}"
    if sum(now) != allocation.accelerators:
        return configured, (
            f"as configured; the checkpoint was taken at {now}, {sum(now)} accelerators instead of "
            f"{allocation.accelerators}"
        )
    if now.rollout < allocation.min_rollout or now.trainer < allocation.min_trainer:
        return configured, (
            f"as configured; the checkpoint was taken at {now}, outside allocation.min_rollout {allocation.min_rollout} "
            f"and allocation.min_trainer {allocation.min_trainer}"
        )
    return now, f"as at the checkpoint; configured are {configured}"

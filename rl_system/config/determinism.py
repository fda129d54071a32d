"""What a run may not contain that is to be repeated bit for bit: anything that depends on when something happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_system.config.run import RunConfig


def require_determinism(config: RunConfig) -> None:
    """ValueError naming the first key of `config` with which `deterministic` cannot be kept."""
    rollout, environment = config.rollout, config.environment
    rules = [
        (
            "rollout.max_staleness", rollout.max_staleness, rollout.max_staleness == 0,
            "which policy samples a token would depend on how fast it is; use 0",
        ),
        (
            "rollout.over_sample", rollout.over_sample, rollout.over_sample == 0,
            "the first episodes to finish would make the group; use 0",
        ),
        (
            "environment.curriculum.enabled", "true", not environment.curriculum.enabled,
            "the next task would depend on which groups have ended by then; leave the curriculum off",
        ),
        (
            "environment.user.kind", environment.user.kind, environment.user.kind != "llm",
            "what another model's server answers is not repeatable; use 'solo' or 'scripted'",
        ),
        (
            "executor.method", config.executor.method, config.executor.method != "auto",
            "'auto' chooses by measured times, and every way of computing rounds differently; use 'tree'",
        ),
        (
            "allocation.mode", config.allocation.mode, config.allocation.mode != "auto",
            "accelerators would move by measured rates; use 'advise' or 'off'",
        ),
    ]  # fmt: skip
    for name, value, kept, why in rules:
        if not kept:
            raise ValueError(f"deterministic is true, but {name} is {value}: {why}")

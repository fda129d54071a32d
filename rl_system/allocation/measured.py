"""A profile from what a run measured of itself.

Every number comes from the run's metrics, events and transcripts, and is named as measured in the profile; what a run cannot tell
(how an engine speeds up with its batch, a move that was never made) stays at its default and is named as assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_system.allocation.growth import HALF_BATCH, largest_part
from rl_system.allocation.profile import Generation, Profile, Sources, Switch, Training, Workload, given_numbers
from rl_system.config.run import RunConfig
from rl_system.errors import UserError

FEWEST_STEPS = 3
"""The first step only shows how the pipeline fills; a spread needs two more."""
ASSUMED = {"generation.half_batch"}

Metrics = Mapping[str, float]


def measured_profile(
    config: RunConfig,
    steps: Sequence[Metrics],
    events: Sequence[Mapping[str, Any]] = (),
    sampled: Sequence[float] = (),
) -> Profile:
    """steps: lines of metrics.jsonl. events: lines of events.jsonl. sampled: tokens of single episodes, for their spread.

    Raises UserError where the run was too short to show anything.
    """
    steps = list(steps)[1:]
    windows = [step for step in steps if "rollout/tool_share" in step]
    if len(steps) < FEWEST_STEPS - 1 or not windows or not sum(step["rollout/episodes"] for step in steps):
        raise UserError(
            f"run {config.name} has {len(steps) + 1} policy updates; a profile needs at least {FEWEST_STEPS}, with episodes "
            "and a closed window of measurement (allocation.window_steps) after the first"
        )
    profile = Profile(
        name=config.name,
        description=f"measured by {len(steps)} policy updates of {config.model.path}",
        accelerators=round(_mean(steps, "controller/rollout") + _mean(steps, "controller/trainer")),
        workload=_workload(config, steps, windows, sampled),
        generation=_generation(config, steps, windows),
        training=_training(steps),
        switch=_switch(events),
    )
    numbers = given_numbers(profile)
    assumed = tuple(name for name in numbers if name in ASSUMED)
    sources = Sources(measured=tuple(name for name in numbers if name not in ASSUMED), assumed=assumed)
    return Profile.model_validate(profile.model_dump(exclude_unset=True) | {"sources": sources.model_dump()})


def _mean(steps: Sequence[Metrics], name: str) -> float:
    return float(np.mean([step[name] for step in steps if name in step] or [0.0]))


def _running(config: RunConfig, windows: Sequence[Metrics]) -> float:
    """Episodes at once, on the average."""
    return config.environment.concurrency * (1 - min(_mean(windows, "perf/permit_wait_share"), 0.95))


def _workload(
    config: RunConfig, steps: Sequence[Metrics], windows: Sequence[Metrics], sampled: Sequence[float]
) -> Workload:
    rollout = config.rollout
    episodes = np.array([step["rollout/episodes"] for step in steps])
    per_s = episodes.sum() / sum(step["time/step_s"] for step in steps)
    tokens = float(np.dot(episodes, [step.get("rollout/episode_tokens_mean", 0.0) for step in steps]) / episodes.sum())
    trained = len(steps) * rollout.groups_per_batch * rollout.group_size
    spread = {"sampled_spread": float(np.std(sampled) / np.mean(sampled))} if len(sampled) > 1 else {}
    return Workload(
        group_size=rollout.group_size,
        groups_per_batch=rollout.groups_per_batch,
        max_staleness=rollout.max_staleness,
        concurrency=config.environment.concurrency,
        sampled_tokens=tokens,
        # Little's law: an episode takes running / per_s, of which it spends that share outside the engines.
        tool_s=_mean(windows, "rollout/tool_share") * _running(config, windows) / per_s,
        turns=max(1, round(_mean(steps, "rollout/turns_mean"))),
        sequence_tokens=sum(step["tree/sequence_tokens"] for step in steps) / trained,
        compression=max(_mean(steps, "tree/shareable"), 1.0),
        dropped=min(_mean(steps, "reward/dropped_share"), 0.99),
        broken=min(_mean(steps, "rollout/failed_share"), 0.99),
        **spread,
    )


def _generation(config: RunConfig, steps: Sequence[Metrics], windows: Sequence[Metrics]) -> Generation:
    """b sequences of an engine get `speed · b / (b + half batch)` tokens a second while it has any."""
    accelerators = _mean(steps, "controller/rollout")
    seconds = sum(step["time/step_s"] for step in steps)
    tokens_per_s = sum(step["rollout/tokens_per_s"] * step["time/step_s"] for step in steps) / seconds
    busy = accelerators * max(1 - _mean(windows, "perf/rollout_idle_share"), 0.05)
    in_engines = _running(config, windows) * (1 - min(_mean(windows, "rollout/tool_share"), 0.95))
    batch = in_engines / busy
    replaced = steps[-1].get("rollout/worker_replacements", 0.0)
    return Generation(
        tokens_per_s=tokens_per_s / busy * (batch + HALF_BATCH) / batch,
        half_batch=HALF_BATCH,
        sync_s=_mean(steps, "time/publish_paused_s"),
        failures_per_hour=replaced / accelerators / (seconds / 3600),
    )


def _training(steps: Sequence[Metrics]) -> dict[str, Training]:
    """By the method that most of a step ran as."""
    found = {}
    for method in ("tree", "dense"):
        chosen = [step for step in steps if (step["tree/used"] >= 0.5) == (method == "tree")]
        if not chosen:
            continue
        overhead_s = float(np.median([step["time/overhead_s"] for step in chosen]))
        repeated = _mean(chosen, "tree/repeated") if method == "tree" else 0.0
        # What one accelerator would have done a second, of the part that each of them had.
        parts = [largest_part(max(round(step["controller/trainer"]), 1), repeated) for step in chosen]
        speeds = np.array([
            step["tree/sequence_tokens"] * part / max(step["time/update_s"] - overhead_s, 1e-3)
            for step, part in zip(chosen, parts, strict=True)
        ])  # fmt: skip
        found[method] = Training(
            tokens_per_s=float(np.median(speeds)),
            repeated=min(repeated, 0.99),
            overhead_s=overhead_s,
            spread=float(np.std(np.log(speeds))),
            shares_prefixes=method == "tree",
        )
    return found


def _switch(events: Sequence[Mapping[str, Any]]) -> Switch:
    """Of moves that were made; others keep their defaults."""
    moved = [e for e in events if e["event"] == "switch_finished" and e.get("outcome") == "moved" and e.get("move")]
    seconds = {
        key: float(np.mean(times))
        for key, move in (("engine_start_s", "to_rollout"), ("release_s", "to_trainer"))
        if (times := [event["seconds"] for event in moved if event["move"] == move])
    }
    if moved:
        seconds["rebuild_s"] = float(np.mean([event["standstill_s"] for event in moved]))
    return Switch(**seconds)

"""Runs on disk, as a tracker leaves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from rl_system.config.load import build_config
from rl_system.tracking.tracker import FINISHED, Tracker


def write_run(output: Path, name: str, steps: int, *, finished: bool = False) -> Path:
    """A run with a reward that rises, evaluations, an event and gaps in its metrics."""
    config = build_config(
        {
            "name": name,
            "output": str(output),
            "steps": max(steps, 1),
            "tracking": {"wandb": "disabled", "progress": False},
        }
    )
    config.directory.mkdir(parents=True)
    (config.directory / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    rng = np.random.default_rng(0)
    with Tracker(config) as tracker:
        tracker.evaluation({"eval/success_rate": 0.25})
        for step in range(1, steps + 1):
            tracker.step(
                step,
                {
                    "time/wall_clock_s": 10.0 * step,
                    "reward/mean": step / steps,
                    "reward/success_rate": step / steps / 2,
                    "off_policy/staleness_mean": 0.5,
                    "off_policy/staleness_max": 1.0,
                    "perf/train_wait_share": float(rng.random()),
                    "tree/compression": 6.5,
                    "train/entropy": float("nan") if step == 2 else 0.5,
                    "controller/rollout": 1,
                    "controller/advised_rollout": 2,
                    "time/update_s": 3.0,
                },
            )
        tracker.event("worker_lost", reason="<engine & all>")
        tracker.evaluation({"eval/success_rate": 0.75})
        if finished:
            tracker.event(FINISHED, steps=steps)
    return config.directory

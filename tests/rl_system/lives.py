"""Directories of runs as earlier lives of them leave them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_system.config.run import RunConfig
from rl_system.records import Sequence
from rl_system.tracking.tracker import STARTED, Tracker
from rl_system.training.checkpoint_directory import Checkpoint, step_directory, write_manifest
from rl_system.training.complete_directory import complete_directory
from rl_system.training.run_state import RunState

CONTENTS = {"model.path": "0123", "model.chat_template": None}
SAMPLER = {"order": {}, "tasks": 9, "again": {}}


def leave_steps(config: RunConfig, steps: int, *, contents: dict[str, str | None] | None = None) -> Path:
    """A run that was killed after so many steps, without a checkpoint."""
    config.directory.mkdir(parents=True, exist_ok=True)
    (config.directory / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    with Tracker(config) as tracker:
        tracker.event(STARTED, contents=contents or CONTENTS)
        for step in range(1, steps + 1):
            tracker.step(step, {"reward/mean": 0.5})
    return config.directory


def leave_checkpoint(
    config: RunConfig,
    step: int,
    *,
    learner: dict[str, Any] | None = None,
    contents: dict[str, str | None] | None = None,
    next_group_id: int = 0,
    running: Iterable[int] = (),
    sampler: dict[str, Any] = SAMPLER,
    model: Path | None = None,
) -> Path:
    """A checkpoint as a run of `config` writes it, without optimizer states; model: a copy of that."""
    ledger = {"trained": step, "next_group_id": next_group_id, "finished": {}, "running": list(running), "dropped": {}}
    configured = {"config": config.model_dump(mode="json"), "contents": contents or CONTENTS}
    none: dict[int, list[Sequence]] = {}
    values, blobs = RunState(step, {"ledger": ledger}, sampler, none, configured).parts()
    path = step_directory(config.directory / "checkpoints", step)
    with complete_directory(path) as staging:
        (staging / "state").mkdir()
        for name, content in blobs.items():
            (staging / "state" / name).write_bytes(content)
        if model is not None:
            shutil.copytree(model, staging / "model")
        (staging / "model").mkdir(exist_ok=True)
        np.save(staging / "model" / "parameters.npy", np.arange(100))
        write_manifest(staging, Checkpoint(path, config.name, step, values, learner or {"started_from": "/models/first"}))
    return path

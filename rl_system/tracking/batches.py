"""Batches on disk: what a step was trained on, bit for bit, as one NumPy archive a step."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import numpy as np

from rl_system.records import TrainBatch


def write_batch(batch: TrainBatch, path: Path) -> Path:
    """Write `batch` to `path` (.npz), complete or not at all; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"new_{path.name}")
    arrays = {each.name: getattr(batch, each.name) for each in fields(batch)}
    np.savez(scratch, **{name: array for name, array in arrays.items() if array is not None})
    os.replace(scratch, path)
    return path


def read_batch(path: Path) -> TrainBatch:
    with np.load(path, allow_pickle=False) as arrays:
        return TrainBatch(**{name: arrays[name] for name in arrays.files})

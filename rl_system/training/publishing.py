"""New parameters on their way to the rollout workers. When a function here returns, the trainer may change its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from rl_system.records import Weights
from rl_system.training.complete_directory import complete_directory
from rl_system.training.model_files import save_parameters
from rl_system.training.weights import Checksum, export_weights


def publish_chunks(
    model: nn.Module, version: int, chunk_bytes: int, verify: bool, put: Callable[[dict[str, np.ndarray]], Any]
) -> Weights:
    """Hand every chunk to `put`, which copies it and returns what stands for it (an object reference)."""
    chunks, checksum = [], Checksum()
    for chunk in export_weights(model, chunk_bytes):
        chunks.append(put(chunk))
        if verify:
            checksum.add(chunk)
    return Weights(version, chunks, checksum.hexdigest() if verify else "")


def publish_directory(model: nn.Module, version: int, parent: Path) -> Weights:
    """Write the safetensors files of `parent/version_<version>`, complete or absent.

    The version before stays, for workers that are still reading it; older ones are removed.
    """
    directory = parent / f"version_{version}"
    with complete_directory(directory) as staging:
        save_parameters(model, staging)
    for old in parent.glob("version_*"):
        number = old.name.removeprefix("version_")
        if number.isdigit() and int(number) < version - 1:
            shutil.rmtree(old)
    return Weights(version, [str(directory)])

"""Checkpoints on disk: which there are, whether one is sound, which one to resume from.

A checkpoint is a directory `step_<N>` that is complete or absent. Its manifest names every other file with size and
checksum, so that a damaged or foreign directory is refused by name instead of being half loaded.

    step_12/checkpoint.json   the manifest
    step_12/model/            parameters and tokenizer in Hugging Face layout
    step_12/critic/           the critic's parameters, where there is one
    step_12/optimizer/        one file a rank, and one more for the critic
    step_12/state/            whatever else the run needs to go on
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_system.errors import UserError
from rl_system.strict_json import write_json
from rl_system.training.complete_directory import remove_directory

MANIFEST = "checkpoint.json"
FORMAT = "rl-system checkpoint"
FORMAT_VERSION = 2
MODEL, CRITIC, OPTIMIZER, STATE = "model", "critic", "optimizer", "state"
READ_BYTES = 1 << 24


class Damaged(UserError):
    """A checkpoint that is not as it was written. what: in which way."""

    def __init__(self, checkpoint: Path, what: str) -> None:
        super().__init__(f"checkpoint {checkpoint} is damaged: {what}; --resume goes on from the one before")
        self.what = what

    def __reduce__(self) -> tuple:
        return UserError, (str(self),)


@dataclass(slots=True)
class Checkpoint:
    """What a manifest says. run: name of the run that wrote it. step: policy updates done by then.

    state: plain values that the run wants back, as JSON holds them. learner: what the trainers need beside their files.
    """

    path: Path
    run: str
    step: int
    state: dict[str, Any] = field(default_factory=dict)
    learner: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def model_directory(self) -> Path:
        return self.path / MODEL

    def require_critic(self, wanted: bool) -> None:
        """Raises UserError unless there is a critic in it exactly if one is `wanted`."""
        if wanted == (CRITIC in self.learner):
            return
        holds, needs = ("no critic", "one") if wanted else ("a critic", "none")
        raise UserError(
            f"checkpoint {self.path} holds {holds}, but the configured algorithm.advantage needs {needs}; resume with the "
            "algorithm.advantage that it was written with"
        )

    def blob(self, name: str) -> bytes:
        """The bytes that were saved under `name`."""
        return (self.path / STATE / name).read_bytes()


def step_directory(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step_{step}"


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """All complete checkpoints, oldest step first."""
    if not checkpoints.is_dir():
        return []
    steps = {int(match[1]): each for each in checkpoints.iterdir() if (match := re.fullmatch(r"step_(\d+)", each.name))}
    return [steps[step] for step in sorted(steps)]


def latest_checkpoint(checkpoints: Path) -> Path | None:
    """The newest checkpoint; None where there is none. It may still prove damaged when opened."""
    found = list_checkpoints(checkpoints)
    return found[-1] if found else None


def newest_sound(checkpoints: Path, run: str) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and what is wrong with each of the newer ones.

    None where there is none at all. UserError where all that there are are damaged, and where one that is newer than all
    whole ones is of another run, format or release.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(list_checkpoints(checkpoints)):
        try:
            return open_checkpoint(path, run), damaged
        except Damaged as error:
            damaged[path] = error.what
    if damaged:
        found = "; ".join(f"{path.name}: {what}" for path, what in damaged.items())
        raise UserError(
            f"every checkpoint in {checkpoints} is damaged ({found}); look what happened to the disk, and move them away if "
            "the run is to begin anew"
        )
    return None, {}


def put_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it is none any more and stays to be looked at; returns its new name."""
    aside = next(name for number in itertools.count() if not (name := _damaged_name(path, number)).exists())
    return path.rename(aside)


def _damaged_name(path: Path, number: int) -> Path:
    return path.with_name(f"damaged_{path.name}{f'_{number}' if number else ''}")


def remove_old(checkpoints: Path, keep: int) -> None:
    """Remove all but the `keep` newest."""
    for path in list_checkpoints(checkpoints)[:-keep]:
        remove_directory(path)


def write_manifest(directory: Path, checkpoint: Checkpoint) -> None:
    """Take stock of every file in `directory` and write the manifest beside them, as the last file of all."""
    files = {
        str(path.relative_to(directory)): {"bytes": path.stat().st_size, "crc32": file_checksum(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "run": checkpoint.run,
        "step": checkpoint.step,
        "state": checkpoint.state,
        "learner": checkpoint.learner,
        "files": files,
    }
    write_json(directory / MANIFEST, manifest, indent=1)


def open_checkpoint(path: Path, run: str | None = None) -> Checkpoint:
    """Read the manifest of `path` and prove every file sound against it.

    Raises UserError, naming the checkpoint and the file, where something is missing, damaged, of another format, or
    (with `run` given) of another run.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except FileNotFoundError:
        raise Damaged(path, f"it holds no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise Damaged(path, f"its {MANIFEST} cannot be read ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"checkpoint {path} was not written by this system; its {MANIFEST} states no such format")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"checkpoint {path} has format version {manifest.get('format_version')}, but this release reads "
            f"{FORMAT_VERSION}; resume with the release that wrote it"
        )
    if run is not None and manifest["run"] != run:
        raise UserError(
            f"checkpoint {path} belongs to run {manifest['run']!r}, not to {run!r}; resume it under its name"
        )
    for name, expected in manifest["files"].items():
        _check_file(path, name, expected)
    return Checkpoint(
        path, manifest["run"], manifest["step"], manifest["state"], manifest["learner"], manifest["files"]
    )


def _check_file(checkpoint: Path, name: str, expected: Mapping[str, Any]) -> None:
    path = checkpoint / name
    if not path.is_file():
        raise Damaged(checkpoint, f"{name} is missing")
    if path.stat().st_size != expected["bytes"]:
        raise Damaged(checkpoint, f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}")
    if file_checksum(path) != expected["crc32"]:
        raise Damaged(checkpoint, f"{name} does not match its checksum")


def file_checksum(path: Path) -> str:
    """CRC-32 of a file, eight hexadecimal digits."""
    total = 0
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            total = zlib.crc32(block, total)
    return f"{total:08x}"

"""The directory of a run, made ready for one more life of it.

Invariant: afterwards nothing in it tells of a step that is going to be done, or done again: whoever reads transcripts, batches or
trees there sees those of the line of steps that the metrics tell of. `config.yaml` is the configuration of now; what it was
until a resume that changed it stays beside it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from rl_system.config.run import RunConfig
from rl_system.start import Start
from rl_system.strict_json import replace_file
from rl_system.tracking.tracker import STARTED, Tracker
from rl_system.training.checkpoint_directory import put_aside
from rl_system.training.complete_directory import remove_abandoned

CONFIG = "config.yaml"
BY_STEP = {"episodes": r"evaluation_step_(\d+)\.jsonl", "trees": r".*_step_(\d+)\.json", "batches": r"step_(\d+)\.npz"}
"""Files that a step leaves, by folder."""
GROUP = r"group_(\d+)\.jsonl"


def make_ready(config: RunConfig, start: Start) -> dict[Path, Path]:
    """Prepare the directory of `config` for a run that starts at `start`. Nobody else may be writing there.

    Returns where damaged checkpoints are now.
    """
    directory = config.directory
    directory.mkdir(parents=True, exist_ok=True)
    aside = {path: put_aside(path) for path in start.damaged}
    remove_abandoned(directory / "checkpoints", older_than_s=0)
    for path in undone_files(directory, start):
        path.unlink()
    shutil.rmtree(directory / "weights", ignore_errors=True)  # for the rollout workers of an earlier life
    written = directory / CONFIG
    if start.changes and written.exists():
        shutil.copyfile(written, _free(directory / f"config_until_step_{start.step}.yaml"))
    replace_file(written, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    return aside


def undone_files(directory: Path, start: Start) -> Iterator[Path]:
    """Files of an earlier life that belong to steps after the start, or to groups that are played again; and half-written
    ones.
    """
    ledger = start.state.controller["ledger"] if start.state else {"next_group_id": 0, "running": []}
    again, last = set(ledger["running"]), start.step if start.state else -1
    for folder, pattern in BY_STEP.items():
        for path in _files(directory / folder):
            if (match := re.fullmatch(pattern, path.name)) and int(match[1]) > last:
                yield path
            elif (match := re.fullmatch(GROUP, path.name)) and folder == "episodes":
                group = int(match[1])
                if group >= ledger["next_group_id"] or group in again:
                    yield path
            elif _half_written(path):
                yield path
    yield from filter(_half_written, _files(directory))


def announce(tracker: Tracker, start: Start, aside: Mapping[Path, Path], contents: Mapping[str, str | None]) -> None:
    """Note where the run starts, and what is otherwise than before."""
    for line in start.describe():
        tracker.progress.note(line)
    if start.state is None:
        tracker.event(STARTED, contents=dict(contents))
    for path, what in start.damaged.items():
        tracker.event("checkpoint_damaged", path=path, reason=what, moved_to=aside.get(path), went_on_from=start.state.path)
    if start.changes:
        tracker.event("config_changed", changes=[{"key": c.key, "old": c.old, "new": c.new} for c in start.changes])


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []


def _half_written(path: Path) -> bool:
    return (path.name.startswith(".") and path.name.endswith(".new")) or path.name.startswith("new_")


def _free(path: Path) -> Path:
    """`path`, or the first of its name with a number that is not taken."""
    number = 1
    free = path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem}_{number}{path.suffix}")
    return free

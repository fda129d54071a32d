"""Where a run starts: from nothing, from a checkpoint, or nowhere because it is complete.

With `--resume` the same command line always does what is left to do, whatever ended the run before and however far it had
come: whoever supervises it need not know. Nothing is changed here; `run_directory` carries out what was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl_system.algorithms.gae import needs_critic
from rl_system.config.resumption import Change, changes, refuse_bound
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.tracking.json_lines import scan_lines
from rl_system.tracking.tracker import FINISHED, STARTED
from rl_system.training.checkpoint_directory import Checkpoint, list_checkpoints, newest_sound
from rl_system.training.run_state import RunState


@dataclass(frozen=True, slots=True)
class Start:
    """state: None where the run starts from nothing. again: an earlier life of the run left something.

    complete: nothing is left to do. damaged: checkpoints that cannot be gone on from, and why. changes: of the
    configuration, against the one that was gone on from. undone: steps on disk that will be done again.
    """

    state: RunState | None = None
    again: bool = False
    complete: bool = False
    damaged: Mapping[Path, str] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    undone: int = 0

    @property
    def step(self) -> int:
        return self.state.step if self.state else 0

    def describe(self) -> list[str]:
        """In words, a line each; nothing for a run that just begins."""
        if self.complete:
            return ["the run is complete already"]
        lines = [f"{path} is damaged ({what}) and is passed over" for path, what in self.damaged.items()]
        if self.again:
            where = f"from step {self.step}" if self.state else "from the beginning, for there is no checkpoint"
            again = f", {self.undone} step(s) after it are done again" if self.undone else ""
            lines.append(f"the run goes on {where}{again}")
        lines += [f"{change.key} is {change.new!r} from here on, it was {change.old!r}" for change in self.changes]
        return lines


def find_start(config: RunConfig, resume: bool, contents: Mapping[str, str | None]) -> Start:
    """Where the run of `config` starts. UserError where that does not fit what its directory holds.

    contents: see `rl_system.training.identity`; without a key, its values are compared as they are spelled.
    """
    directory = config.directory
    lines = scan_lines(directory / "metrics.jsonl").lines
    steps = [line["step"] for line in lines if isinstance(line.get("step"), int)]
    if not resume:
        if lines or list_checkpoints(directory / "checkpoints"):
            raise UserError(
                f"{directory} holds a run already; add --resume to go on with it, or give this run another name "
                "(--name)"
            )
        return Start()
    checkpoint, damaged = newest_sound(directory / "checkpoints", config.name)
    events = scan_lines(directory / "events.jsonl").lines
    # A run that did nothing yet may still become any.
    before, behind = _before(directory, checkpoint, events) if checkpoint or steps else ({}, {})
    found = changes(before, config.model_dump(mode="json"), behind, contents)
    refuse_bound(found, _remedy(checkpoint))
    if checkpoint is None:
        again = (directory / "config.yaml").exists() or bool(steps or events)
        return Start(again=again, changes=tuple(found), undone=len(steps))
    checkpoint.require_critic(needs_critic(config.algorithm))
    state = RunState.of(checkpoint)
    return Start(
        state=state,
        again=True,
        complete=state.step >= config.steps and _finished(events) >= config.steps,
        damaged=damaged,
        changes=tuple(found),
        undone=sum(step > state.step for step in steps),
    )


def _before(
    directory: Path, checkpoint: Checkpoint | None, events: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """The configuration that is gone on from, and what was behind its names; empty where it is not known."""
    if checkpoint is not None and (configured := checkpoint.state.get("configured")):
        return configured["config"], configured["contents"]
    starts = [event["contents"] for event in events if event.get("event") == STARTED and "contents" in event]
    try:
        config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # not there, or cut off
        config = None
    whole = isinstance(config, dict) and list(RunConfig.model_fields)[-1] in config
    return (config, starts[-1] if starts else {}) if whole else ({}, {})


def _remedy(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "Resume the run as it was begun, or start another (--name)."
    return (
        "Resume the run as it was begun, or start another from the model that it has now: --name and --model.path "
        f"{checkpoint.model_directory}."
    )


def _finished(events: list[dict[str, Any]]) -> int:
    """The most steps after which the run noted that nothing was left to do; 0: never."""
    return max((event.get("steps", 0) for event in events if event.get("event") == FINISHED), default=0)

"""What a run leaves on disk while it goes on, and what a person sees of it.

Owns `metrics.jsonl` (one object a step), `events.jsonl` (what happened besides), `undone.jsonl` (lines of both that a resume took
back), W&B's feed, the progress display and the run's clock. Every step line carries `step` and `time/wall_clock_s`; both only
ever grow within a file, also over a resume.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_system.config.run import RunConfig
from rl_system.tracking.events import EVALUATION, FINISHED, STARTED
from rl_system.tracking.json_lines import JsonLines, scan_lines
from rl_system.tracking.progress import Progress, make_progress

if TYPE_CHECKING:
    from rl_system.tracking.wandb_feed import WandbFeed

__all__ = ["EVALUATION", "FINISHED", "STARTED", "Tracker", "settle"]

METRICS, EVENTS, UNDONE = "metrics.jsonl", "events.jsonl", "undone.jsonl"


class Tracker:
    """Opens the files of `config.directory`.

    resume_step: the last step that a resumed run keeps, 0 for none; lines of later steps are of work that will be done again,
    and go to `undone.jsonl`. None: a fresh run, which starts the files anew.

    started: when the run began by `time.monotonic`, where it has gone on ever since; what it did meanwhile and is taken back
    took its time too. Otherwise the clock goes on from the last line that is kept.
    """

    def __init__(self, config: RunConfig, *, resume_step: int | None = None, started: float | None = None) -> None:
        def kept(line: dict[str, Any]) -> bool:
            # Without a step that is kept nothing is: also what was before the first one is done again.
            return bool(resume_step) and isinstance(line.get("step"), int) and line["step"] <= resume_step

        directory, tracking = config.directory, config.tracking
        self.directory = directory
        _keep_undone(directory, kept, resume_step or 0)
        self._metrics = JsonLines(directory / METRICS, kept)
        self._events = JsonLines(directory / EVENTS, kept)
        self._step = resume_step or 0
        earlier = [line.get("time/wall_clock_s") or 0.0 for line in self._metrics.kept + self._events.kept]
        self.started = time.monotonic() - max(earlier, default=0.0) if started is None else started
        self.evaluated = {line["step"] for line in self._events.kept if line.get("event") == EVALUATION}
        """Steps after which the policy was evaluated."""
        self._held_up: set[Path] = set()
        self.progress: Progress = make_progress(config.steps, shown=tracking.progress)
        if resume_step is not None:
            undone = [line["step"] for line in self._metrics.undone if isinstance(line.get("step"), int)]
            self.event("resume", kept_steps=resume_step, undone_steps=len(set(undone)))
        for file in (self._metrics, self._events):
            for number, text in file.broken.items():
                self.event("broken_line", file=file.path.name, line=number, text=text[:200])
        self._wandb = _wandb_feed(config, note=self._note_wandb)

    def wall_clock_s(self) -> float:
        """Seconds of this run, those before a resume included."""
        return time.monotonic() - self.started

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of policy update `step`. ValueError for a step that is not later than the last one."""
        if step <= self._step and self._step:
            raise ValueError(f"metrics of step {step} come after those of step {self._step}")
        self._step = step
        line = {"step": step, "time/wall_clock_s": self.wall_clock_s(), **metrics}
        self._write(self._metrics, line)
        if self._wandb is not None:
            self._wandb.row(line)
        self.progress.step(line)

    def evaluation(self, metrics: Mapping[str, float]) -> None:
        """Note the result of an evaluation, by `eval/` names, after the last step written. It is an event: a run may
        evaluate before its first step, and twice after one.
        """
        line = self.event(EVALUATION, **metrics)
        self.evaluated.add(self._step)
        if self._wandb is not None:
            self._wandb.row(line)

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Note something that happened: a failure, a recovery, a switch, an evaluation. fields: plain values. Returns the line."""
        line = {
            "event": kind,
            "step": self._step,
            "time/wall_clock_s": self.wall_clock_s(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **fields,
        }
        self._write(self._events, line)
        return line

    def flush(self) -> None:
        """Have everything on the disk itself, where a loss of power does not reach it."""
        for file in (self._metrics, self._events):
            file.sync()

    def close(self, *, failed: bool = False) -> None:
        """Close W&B's feed, the display and the files; safe to call twice. failed: how W&B marks the run."""
        if self._wandb is not None:
            self._wandb.close(failed=failed)
            self._wandb = None
        self.progress.close()
        self._metrics.close()
        self._events.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(failed=kind is not None)

    def _write(self, file: JsonLines, line: dict[str, Any]) -> None:
        """Say once when the disk takes no more, and once when it does again."""
        if file.write(line):
            if file.path in self._held_up:
                self._held_up.remove(file.path)
                self.progress.note(f"{file.path} is written again, with what was held back")
        elif file.path not in self._held_up:
            self._held_up.add(file.path)
            self.progress.note(f"{file.path} cannot be written ({file.fault.strerror}); its lines are held back until it can")

    def _note_wandb(self, kind: str, **fields: Any) -> None:
        self.event(kind, **fields)
        self.progress.note(_words(kind, fields))


def settle(config: RunConfig) -> None:
    """Send what the last life of a complete run did not get to W&B."""
    if config.tracking.wandb == "disabled":
        return
    from rl_system.tracking.wandb_feed import is_settled

    if not is_settled(config.directory):
        _wandb_feed(config, note=lambda kind, **fields: print(_words(kind, fields))).close(failed=False)


def _words(kind: str, fields: Mapping[str, Any]) -> str:
    words = {"wandb_lost": "W&B is lost", "wandb_offline": "W&B cannot be reached", "wandb_replaced": "a new W&B run"}
    return f"{words[kind]}: {fields['reason']}" + (f"; {fields['then']}" if "then" in fields else "")


def _keep_undone(directory: Path, kept: Callable[[dict[str, Any]], bool], resume_step: int) -> None:
    """Append the lines that are about to be taken back to `undone.jsonl`, with the step that was gone back to."""
    undone = [
        (name, line) for name in (METRICS, EVENTS) for line in scan_lines(directory / name).lines if not kept(line)
    ]
    if undone:
        history = JsonLines(directory / UNDONE, keep=lambda line: True)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        for name, line in undone:
            history.write({"undone_at": at, "kept_steps": resume_step, "file": name, "line": line})
        history.close()


def _wandb_feed(config: RunConfig, note: Callable[..., None]) -> WandbFeed | None:
    tracking, directory = config.tracking, config.directory
    if tracking.wandb == "disabled":
        return None
    from rl_system.tracking.wandb_feed import WandbFeed, journal_rows  # a second to import, and not needed without it

    return WandbFeed(
        directory,
        project=tracking.project,
        name=config.name,
        mode=tracking.wandb,
        config=config.model_dump(mode="json"),
        rows=lambda: journal_rows(scan_lines(directory / METRICS).lines, scan_lines(directory / EVENTS).lines),
        note=note,
    )

"""What a run leaves on disk while it goes on, and what a person sees of it.

Owns `metrics.jsonl` (one object a step), `events.jsonl` (what happened besides), the W&B run, the progress display
and the run's clock. Every step line carries `step` and `time/wall_clock_s`; both only ever grow within a file, also
over a resume.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rl_system.config.run import RunConfig
from rl_system.tracking.json_lines import JsonLines
from rl_system.tracking.progress import Progress, make_progress

EVALUATION = "evaluation"
"""Kind of the event that carries `eval/` metrics."""


class Tracker:
    """Opens the files of `config.directory`.

    resume_step: the last step that a resumed run keeps; lines of later steps are of work that will be done again, and
    are dropped. None: a fresh run, which starts the files anew.
    """

    def __init__(self, config: RunConfig, *, resume_step: int | None = None) -> None:
        def before(line: dict[str, Any]) -> bool:
            return resume_step is not None and line["step"] <= resume_step

        resume = resume_step is not None
        directory, tracking = config.directory, config.tracking
        self.directory = directory
        self._metrics = JsonLines(directory / "metrics.jsonl", before if resume else None)
        self._events = JsonLines(directory / "events.jsonl", before if resume else None)
        self._step = resume_step or 0
        earlier = [line["time/wall_clock_s"] for line in self._metrics.kept + self._events.kept]
        self._started = time.monotonic() - max(earlier, default=0.0)
        self.progress: Progress = make_progress(config.steps, shown=tracking.progress)
        self._wandb = None
        if tracking.wandb != "disabled":
            from rl_system.tracking.wandb_run import WandbRun  # a second to import, and not needed without it

            self._wandb = WandbRun(
                directory,
                project=tracking.project,
                name=config.name,
                mode=tracking.wandb,
                config=config.model_dump(mode="json"),
                resume=resume,
            )
        if resume:
            self.event("resume", kept_steps=resume_step)

    def wall_clock_s(self) -> float:
        """Seconds of this run, those before a resume included."""
        return time.monotonic() - self._started

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of policy update `step`. ValueError for a step that is not later than the last one."""
        if step <= self._step and self._step:
            raise ValueError(f"metrics of step {step} come after those of step {self._step}")
        self._step = step
        line = {"step": step, "time/wall_clock_s": self.wall_clock_s(), **metrics}
        self._metrics.write(line)
        if self._wandb is not None:
            self._wandb.log(line)
        self.progress.step(line)

    def evaluation(self, metrics: Mapping[str, float]) -> None:
        """Note the result of an evaluation, by `eval/` names, after the last step written. It is an event: a run may
        evaluate before its first step, and twice after one.
        """
        self.event(EVALUATION, **metrics)
        if self._wandb is not None:
            self._wandb.log({"step": self._step, "time/wall_clock_s": self.wall_clock_s(), **metrics})

    def event(self, kind: str, **fields: Any) -> None:
        """Note something that happened: a failure, a recovery, a switch, an evaluation. fields: plain values."""
        self._events.write(
            {
                "event": kind,
                "step": self._step,
                "time/wall_clock_s": self.wall_clock_s(),
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                **fields,
            }
        )

    def close(self, *, failed: bool = False) -> None:
        """Close the display, the files and the W&B run; safe to call twice. failed: how W&B marks the run."""
        self.progress.close()
        self._metrics.close()
        self._events.close()
        if self._wandb is not None:
            self._wandb.close(failed=failed)
            self._wandb = None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(failed=kind is not None)

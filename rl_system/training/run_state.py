"""What a run needs to go on besides its trainers: the staleness counters, the data cursor and the groups in between.

Invariant: every group that was started before the checkpoint is trained on exactly once over the whole run, or is started
again under its id and with its task. A group counts as running or finished where the ledger says so.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from rl_system.algorithms.batching import join_groups
from rl_system.records import Sequence
from rl_system.training.checkpoint_directory import Checkpoint

GROUPS_FILE = "groups.npz"


@dataclass(slots=True)
class RunState:
    """path: of the checkpoint that it came from. controller, sampler: states of the ledger and policy, and of the task
    order.

    groups: sequences of the finished groups that no step has taken yet, by group. configured: the configuration of the run
    (`config`), and the fingerprints of what its names stand for (`contents`). started_from: where the model was that the
    run began with.
    """

    step: int
    controller: dict[str, Any]
    sampler: dict[str, Any]
    groups: dict[int, list[Sequence]]
    configured: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    started_from: Path | None = None

    @classmethod
    def collect(
        cls,
        step: int,
        pool: dict[str, Any],
        controller: dict[str, Any],
        groups: dict[int, list[Sequence]],
        configured: dict[str, Any] | None = None,
    ) -> RunState:
        """From the states of the actors, taken in the order pool, controller, dispatcher while all of them go on
        working.

        A group may have moved on between two of those moments; the ledger, in the middle, decides where it is. One that
        was started after the pool was asked has no task there: it takes the next one again, which is the same.
        """
        ledger = controller["ledger"]
        tasks = pool["sampler"]["again"] | pool["under_way"]
        again = {str(group_id): tasks[str(group_id)] for group_id in ledger["running"] if str(group_id) in tasks}
        finished = sorted(int(group_id) for group_id in ledger["finished"])
        sampler, kept = pool["sampler"] | {"again": again}, {each: groups[each] for each in finished}
        return cls(step, controller, sampler, kept, configured or {})

    def parts(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Plain JSON values, and files by name: how a checkpoint stores it."""
        batch = join_groups(self.groups)
        buffer = io.BytesIO()
        names = [each.name for each in fields(batch)]
        np.savez(buffer, **{name: value for name in names if (value := getattr(batch, name)) is not None})
        values = {"controller": self.controller, "sampler": self.sampler, "configured": self.configured}
        return values, {GROUPS_FILE: buffer.getvalue()}

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> RunState:
        groups: dict[int, list[Sequence]] = {}
        with np.load(io.BytesIO(checkpoint.blob(GROUPS_FILE)), allow_pickle=False) as arrays:
            flat = {each.name: arrays[each.name] for each in fields(Sequence)}
            offsets, group_ids = arrays["offsets"], arrays["group_ids"]
        for group_id, start, end in zip(group_ids, offsets[:-1], offsets[1:], strict=True):
            sequence = Sequence(**{name: values[start:end] for name, values in flat.items()})
            groups.setdefault(int(group_id), []).append(sequence)
        state, started_from = checkpoint.state, checkpoint.learner.get("started_from")
        return cls(
            checkpoint.step,
            state["controller"],
            state["sampler"],
            groups,
            state.get("configured", {}),
            checkpoint.path,
            Path(started_from) if started_from else None,
        )

"""What a person should hear of a run's numbers without looking for it: on the console as it happens, and in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_system.tracking.history import History

NORMAL_GAPS = {"float32": 1e-3, "float64": 1e-3, "bfloat16": 0.5}
"""Largest difference between engine and trainer that rounding explains, in nats, by `model.dtype`. Default runs in float32
show less than a tenth of it; bfloat16 rounds 65,536 times as coarsely."""
COUNTS = {
    "policy": ("train/bad_steps", "train/empty_updates"),
    "critic": ("train/critic_bad_steps", "train/critic_empty_updates"),
}
"""Of each model that is trained: updates left out so far for numbers that are none, and in a step for want of a gradient."""


class StepRemarks:
    """Told of every step of a run, in order; says what is new about it. dtype: `model.dtype`."""

    def __init__(self, dtype: str) -> None:
        self._normal_gap = NORMAL_GAPS.get(dtype)
        self._bad: dict[str, float] = {}
        self._gap_said = False

    def of(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """One line for each thing worth hearing about `step`; mostly none."""
        said = []
        for model, (name, _) in COUNTS.items():
            bad = metrics.get(name, 0.0)
            if bad > self._bad.get(model, 0.0):
                said.append(
                    f"update {step}: loss or gradient of the {model} was not finite; its parameters stay as they were "
                    f"({bad:.0f} such updates so far)"
                )
            self._bad[model] = bad
        if metrics.get("train/empty_updates", 0.0) > 0 and metrics.get("train/updates", 0.0) == 0:
            said.append(f"update {step}: no token of the batch had a gradient; the parameters stay as they were")
        gap = metrics.get("rollout/logprob_gap")
        if gap is not None and self._normal_gap is not None and not gap <= self._normal_gap and not self._gap_said:
            self._gap_said = True
            said.append(f"update {step}: {_gap(gap, self._normal_gap)}")
        return said


def remarks(history: History) -> list[str]:
    """The same of a whole run, in summary."""
    said = []
    for model, (bad_steps, empty_updates) in COUNTS.items():
        _, bad = history.series(bad_steps)
        if len(bad) and bad[-1] > 0:
            said.append(
                f"{bad[-1]:.0f} updates of the {model} were left out because loss or gradient was not finite: "
                f"see {bad_steps}"
            )
        _, empty = history.series(empty_updates)
        if len(empty) and empty.sum() > 0:
            said.append(f"{empty.sum():.0f} updates of the {model} were left out because no token had a gradient")
    normal = NORMAL_GAPS.get(_dtype(history.config))
    steps, gaps = history.series("rollout/logprob_gap")
    if normal is not None and len(gaps) and gaps.max() > normal:
        above = int((gaps > normal).sum())
        said.append(f"{_gap(gaps.max(), normal)} (in {above} of {len(steps)} steps)")
    return said


def _gap(gap: float, normal: float) -> str:
    return (
        f"a rollout worker and the trainer differ by {gap:.2g} nats on the same tokens after an update, where rounding "
        f"explains {normal:g}: the worker serves other weights or computes something else"
    )


def _dtype(config: Mapping[str, Any]) -> str:
    return config.get("model", {}).get("dtype", "")

"""A run in a dozen numbers: what a person reads first."""

from __future__ import annotations

import numpy as np

from rl_system.tracking.history import History


def quarters(values: np.ndarray) -> tuple[float, float]:
    """Mean of the first and of the last quarter of `values` [n], n ≥ 1; a quarter has at least one value."""
    size = max(1, len(values) // 4)
    return float(values[:size].mean()), float(values[-size:].mean())


def summarise(history: History) -> dict[str, str]:
    """Short texts by headline; a headline whose metrics are missing is left out."""
    found: dict[str, str] = {"Policy updates": str(len(history.steps))}
    if history.steps:
        found["Wall clock"] = _duration(history.steps[-1]["time/wall_clock_s"])
    _, rewards = history.series("reward/mean")
    if len(rewards):
        first, last = quarters(rewards)
        found["Reward, first → last quarter"] = f"{first:.3f} → {last:.3f}"
    rates = [line["eval/success_rate"] for line in history.evaluations() if line.get("eval/success_rate") is not None]
    if len(rates) > 1:
        found["Held-out success, before → after"] = f"{rates[0]:.0%} → {rates[-1]:.0%}"
    elif rates:
        found["Held-out success"] = f"{rates[0]:.0%}"
    _, oldest = history.series("off_policy/staleness_max")
    if len(oldest):
        bound = history.config.get("rollout", {}).get("max_staleness")
        found["Largest staleness"] = f"{oldest.max():.0f}" + (f" of {bound} allowed" if bound is not None else "")
    for headline, name, form in (
        ("Prefix sharing", "tree/compression", "{:.1f}x"),
        ("Sampled tokens per second", "rollout/tokens_per_s", "{:,.0f}"),
        ("Trained tokens per second", "perf/train_tokens_per_s", "{:,.0f}"),
        ("Engines idle", "perf/rollout_idle_share", "{:.0%}"),
        ("Trainer waits", "perf/train_wait_share", "{:.0%}"),
    ):
        _, values = history.series(name)
        if len(values):
            found[headline] = form.format(values.mean())
    _, gaps = history.series("rollout/logprob_gap")
    if len(gaps):
        found["Largest logprob gap"] = f"{gaps.max():.1e}"
    return found


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

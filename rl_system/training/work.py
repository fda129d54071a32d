"""What the executors did for one step's batch, as numbers that add up over minibatches and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_system.algorithms.statistics import Statistics
from rl_system.executor import StepResult
from rl_system.records import TrainBatch


@dataclass(slots=True)
class Work:
    """rank_seconds, reduce_seconds: seconds that each rank spent in its executor, and on reducing gradients and stepping its
    optimizer. The rest are sums of the reports, but the peak.
    """

    statistics: Statistics = field(default_factory=Statistics)
    sequences: int = 0
    trained_tokens: int = 0
    sequence_tokens: int = 0
    unique_tokens: int = 0
    recomputed_tokens: int = 0
    blocks: int = 0
    steps: int = 0
    sharing_steps: int = 0
    peak_live_tokens: int = 0
    rank_seconds: list[float] = field(default_factory=list)
    reduce_seconds: list[float] = field(default_factory=list)

    def add(self, batch: TrainBatch, result: StepResult) -> None:
        """One step of this rank's executor."""
        report = result.report
        self.statistics.merge(result.statistics)
        self.sequences += len(batch)
        self.trained_tokens += int((batch.weights != 0).sum())
        self.sequence_tokens += report.sequence_tokens
        self.unique_tokens += report.unique_tokens
        self.recomputed_tokens += report.recomputed_tokens
        self.blocks += report.blocks
        self.steps += 1
        self.sharing_steps += not report.method.startswith("dense")
        self.peak_live_tokens = max(self.peak_live_tokens, report.peak_live_tokens)
        self.rank_seconds = [sum(self.rank_seconds) + report.seconds]

    def reduced(self, seconds: float) -> None:
        """One step of this rank's optimizer."""
        self.reduce_seconds = [sum(self.reduce_seconds) + seconds]

    def merge(self, other: Work) -> None:
        """The work of another rank."""
        self.statistics.merge(other.statistics)
        for name in (
            "sequences", "trained_tokens", "sequence_tokens", "unique_tokens", "recomputed_tokens", "blocks", "steps",
            "sharing_steps",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak_live_tokens = max(self.peak_live_tokens, other.peak_live_tokens)
        self.rank_seconds = self.rank_seconds + other.rank_seconds
        self.reduce_seconds = self.reduce_seconds + other.reduce_seconds

    def metrics(self) -> dict[str, float]:
        """By full metric name. `tree/compression`: sequence tokens per unique token; `perf/train_imbalance`: slowest
        rank over the mean of all.
        """
        seconds = self.rank_seconds
        return self.statistics.values() | {
            "train/sequences": float(self.sequences),
            "train/trained_tokens": float(self.trained_tokens),
            "tree/sequence_tokens": float(self.sequence_tokens),
            "tree/unique_tokens": float(self.unique_tokens),
            "tree/used": self.sharing_steps / max(self.steps, 1),
            "tree/compression": self.sequence_tokens / max(self.unique_tokens, 1),
            "tree/recomputed_tokens": float(self.recomputed_tokens),
            "tree/blocks": float(self.blocks),
            "tree/peak_live_tokens": float(self.peak_live_tokens),
            # The slowest rank is the one that waits for no other.
            "perf/reduce_s": min(self.reduce_seconds, default=0.0),
            "perf/train_imbalance": max(seconds) * len(seconds) / sum(seconds) if sum(seconds) > 0 else 1.0,
        }

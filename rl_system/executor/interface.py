"""What every executor answers, whatever it does in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from rl_system.algorithms.objective import Objective
from rl_system.algorithms.statistics import Statistics
from rl_system.records import TrainBatch
from rl_system.tree.cost_model import CostModel


@dataclass(slots=True)
class ExecutionReport:
    """What was run, and how.

    method: `tree`, `dense`, `dense_ckpt`, `leaves` or `packed`, never `auto`; reason: why this one. unique_tokens: distinct
    prefixes of the batch. recomputed_tokens: rows that went through the model more than once on the way forward,
    counted once for each time too many. peak_live_tokens: most rows whose graph was held at one time.
    block_tokens: the limit in force, 0 for none.
    """

    method: str
    reason: str
    blocks: int
    sequence_tokens: int
    unique_tokens: int
    recomputed_tokens: int
    peak_live_tokens: int
    seconds: float
    block_tokens: int = 0


@dataclass(slots=True)
class StepResult:
    """loss: of the whole batch. logprobs: float32 (float64 for float64 models) [sequence tokens], current logprobs (for a
    value head: values) in nats, 0 where not trained."""

    loss: float
    statistics: Statistics
    logprobs: np.ndarray
    report: ExecutionReport


class Executor(Protocol):
    """Runs a model over a batch. cost_model: what it has learnt about how long that takes. gradients: float32 buffers by
    parameter name where gradients do not add up in `.grad` (bfloat16 parameters), else empty."""

    cost_model: CostModel
    gradients: dict[str, Tensor]

    def step(self, batch: TrainBatch, objective: Objective) -> StepResult:
        """Add d(loss)/d(parameters) to the gradient buffers, which are never zeroed here."""
        ...

    def logprobs(self, batch: TrainBatch) -> np.ndarray:
        """Current logprobs (values) as in `StepResult`, without graph."""
        ...

"""How long a piece of training work takes, learnt from the work done so far.

    seconds = a·tokens + b·attended pairs + c·passes + d·recomputed tokens + e·targets

with non-negative coefficients, one set for each way of running the model, because a way has its own kernels. Before
anything was measured the coefficients come from counting floating-point operations; measurements pull them from there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, field

import numpy as np
from scipy.optimize import nnls

WINDOW = 64
"""Measurements kept for each way of running; older ones describe another state of the machine."""
PRIOR_WEIGHT = 0.05
"""What one unit of relative deviation from the prior costs, in units of relative error of one measurement."""
PRIOR_FLOPS = 5e10
"""Operations a second before anything was measured; only the order of magnitude of first predictions hangs on it."""
PASS_TOKENS = 16
"""Tokens whose time the fixed cost of one pass of the model equals, before anything was measured."""


@dataclass(frozen=True, slots=True)
class Work:
    """tokens: rows run with graph. pairs: (query, key) pairs of their attention. passes: forwards of the model with graph.
    recomputed: rows run a second time, without graph. targets: rows of the output head."""

    tokens: float
    pairs: float
    passes: float
    recomputed: float
    targets: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """layer_parameters: of all layers together, those active for a token. attention_width: query heads times head size."""

    layer_parameters: int
    layers: int
    attention_width: int
    hidden: int
    vocabulary: int

    def prior(self) -> np.ndarray:
        """Seconds per unit of each field of `Work`: 2 operations a parameter and 4 a pair and unit of width forward;
        backward twice that, for attention two and a half times."""
        forward = 2 * self.layer_parameters
        token, pair = 3 * forward, 3.5 * 4 * self.layers * self.attention_width
        head = 3 * 2 * self.hidden * self.vocabulary
        return np.array([token, pair, PASS_TOKENS * token, forward, head]) / PRIOR_FLOPS


@dataclass(slots=True)
class CostModel:
    shape: ModelShape
    _coefficients: dict[str, np.ndarray] = field(default_factory=dict)
    _measured: dict[str, deque[tuple[np.ndarray, float]]] = field(default_factory=dict)

    def coefficients(self, method: str) -> np.ndarray:
        """Seconds per unit of each field of `Work`, all ≥ 0."""
        if method not in self._coefficients:
            return self.shape.prior() * self._speed()
        return self._coefficients[method]

    def seconds(self, method: str, work: Work) -> float:
        return float(self.coefficients(method) @ np.array(astuple(work)))

    def observe(self, method: str, work: Work, seconds: float) -> None:
        """Take in one measured step and fit the method's coefficients again."""
        measured = self._measured.setdefault(method, deque(maxlen=WINDOW))
        measured.append((np.array(astuple(work)), seconds))
        features = np.array([each for each, _ in measured])
        times = np.array([each for _, each in measured])
        prior = self.shape.prior()
        prior = prior * np.median(times / np.maximum(features @ prior, 1e-12))
        # In units of the prior and relative to the measured times, so that long and short steps count alike.
        rows = features * prior / times[:, None]
        pull = PRIOR_WEIGHT * np.eye(len(prior))
        solution, _ = nnls(np.vstack([rows, pull]), np.concatenate([np.ones(len(times)), PRIOR_WEIGHT * np.ones(len(prior))]))
        self._coefficients[method] = solution * prior

    def _speed(self) -> float:
        """How much slower than the prior the methods measured so far were, for those not measured yet."""
        prior = self.shape.prior()
        ratios = [seconds / max(float(work @ prior), 1e-12) for each in self._measured.values() for work, seconds in each]
        return float(np.median(ratios)) if ratios else 1.0

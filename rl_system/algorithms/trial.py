"""What a configuration names of algorithms is tried on a few made-up tokens before a run depends on it.

Whatever is wrong with an implementation in itself is found here: arguments that do not fit, a loss of another shape, one
that does not depend on the policy, or one that looks at more tokens than it declares. Every mistake is a UserError that
names the key, what happened and the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rl_system.algorithms import registry
from rl_system.algorithms.kl import needs_reference
from rl_system.algorithms.metering import Meter
from rl_system.algorithms.objective import Pairs
from rl_system.algorithms.policy_objective import make_objective
from rl_system.algorithms.registry import FIELDS, Kind
from rl_system.algorithms.surrogate import Tokens
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.errors import UserError
from rl_system.origin import definition, explain

SEQUENCE = torch.tensor([0, 0, 0, 0, 2, 2, 2, 5])
"""The sequences of the made-up tokens: of several lengths, not numbered one after another, as in a part of a batch."""
CURRENT = torch.tensor([-0.1, -1.5, -2.0, -0.4, -3.0, -0.7, -1.1, -0.2])
EARLIER = CURRENT + torch.tensor([0.01, -0.3, 0.02, 0.4, -0.01, 0.05, -0.05, 0.0])
ADVANTAGES = torch.tensor([1.0, 1.0, 1.0, 1.0, -0.5, -0.5, -0.5, -0.5])
TOLERANCE = 1e-4
"""Relative, of float32."""
VERSION = 3


def check_algorithm(config: AlgorithmConfig, group_size: int = 4) -> None:
    """Try the advantage estimator, the objective and the correction of `config`, alone and together."""
    _Trial("advantages", config.advantage).estimator(max(group_size, 2))
    surrogate = _Trial("objectives", config.objective)
    surrogate.tokenwise(
        lambda rows, meter: surrogate.function(_tokens(rows), config, meter), "the loss of each pair", differentiable=True
    )
    correction = _Trial("corrections", config.correction)
    log_ratio = CURRENT - EARLIER
    correction.tokenwise(
        lambda rows, meter: correction.function(log_ratio[rows], SEQUENCE[rows], config, meter), "a factor for each pair"
    )
    _check_whole(config)


class _Trial:
    """One implementation, called on made-up values."""

    def __init__(self, kind: Kind, name: str) -> None:
        self.function = registry.find(kind, name)
        self._what = f"{FIELDS[kind]} is {name!r}"

    def estimator(self, members: int) -> None:
        rewards = np.arange(members, dtype=np.float64) % 2
        advantages = self._call(lambda: self.function(rewards.copy()))
        if not isinstance(advantages, np.ndarray) or advantages.shape != rewards.shape:
            self._refuse(f"gave {_shape(advantages)} for the rewards of {members} members; it must be an array [{members}]")
        if not np.isfinite(advantages).all():
            self._refuse(f"gave {advantages.tolist()} for the rewards {rewards.tolist()}; advantages must be finite")

    def tokenwise(
        self, call: Callable[[torch.Tensor, Meter], Any], what: str, *, differentiable: bool = False
    ) -> None:
        """call: with the rows of the made-up tokens that it is to see. differentiable: with respect to `_tokens`' logprobs."""
        everything = torch.arange(len(SEQUENCE))
        whole = self._values(call, everything, what)
        if differentiable and not whole.requires_grad:
            self._refuse(f"gave {what} without a graph to the current logprobs (tokens.logprobs): it would teach nothing")
        self._values(call, everything[:0], what)
        parts = [everything[SEQUENCE == each] for each in SEQUENCE.unique()]
        if not self.function.coupled:
            parts = [everything[::2], everything[1::2]]
        seen = torch.cat([self._values(call, rows, what).detach() for rows in parts])
        expected = whole.detach()[torch.cat(parts)]
        if not torch.allclose(seen, expected, rtol=TOLERANCE, atol=TOLERANCE):
            others = "tokens of other sequences" if self.function.coupled else "other tokens, and it does not say coupled=True"
            self._refuse(f"gave another value for a token together with {others}; a batch is cut in many ways, and no cut "
                         "may change the loss")  # fmt: skip

    def _values(self, call: Callable[[torch.Tensor, Meter], Any], rows: torch.Tensor, what: str) -> torch.Tensor:
        meter = Meter()
        values = self._call(lambda: call(rows, meter))
        if not isinstance(values, torch.Tensor) or values.shape != rows.shape:
            self._refuse(f"gave {_shape(values)} for {len(rows)} pairs; it must be {what}, a tensor [{len(rows)}]")
        if not torch.isfinite(values).all():
            self._refuse(f"gave {values.tolist()} for made-up pairs; it must be {what}, all finite")
        self._call(meter.statistics)
        return values

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # a file that somebody added, which may do anything
            raise UserError(f"{self._what}, but tried on made-up values it raised {explain(error, self.function)}") from error

    def _refuse(self, why: str) -> None:
        raise UserError(f"{self._what}, but tried on made-up values it ({definition(self.function)}) {why}")


def _tokens(rows: torch.Tensor) -> Tokens:
    return Tokens(CURRENT[rows].clone().requires_grad_(), EARLIER[rows], ADVANTAGES[rows], SEQUENCE[rows])


def _check_whole(config: AlgorithmConfig) -> None:
    """The parts together, as the trainer uses them."""
    objective = make_objective(config, VERSION)
    logprobs = CURRENT.clone().requires_grad_()
    pairs = Pairs(
        sequence=SEQUENCE,
        behaviour_logprobs=EARLIER,
        advantages=ADVANTAGES,
        weights=torch.full_like(CURRENT, 1 / len(CURRENT)),
        versions=torch.full_like(SEQUENCE, VERSION - 1),
        reference_logprobs=EARLIER if needs_reference(config) else None,
    )
    try:
        loss, _ = objective(logprobs, torch.ones_like(CURRENT) if objective.needs_entropy else None, pairs)
        loss.backward()
    except Exception as error:  # see above
        function = registry.find("objectives", config.objective)
        raise UserError(
            f"algorithm.objective {config.objective!r} with algorithm.correction {config.correction!r}, tried on made-up "
            f"values, raised {explain(error, function)}"
        ) from error
    if not torch.isfinite(loss) or logprobs.grad is None or not torch.isfinite(logprobs.grad).all():
        raise UserError(
            f"algorithm.objective {config.objective!r} with algorithm.correction {config.correction!r}, tried on made-up "
            f"values, gave a loss of {loss.item()} and gradients that are not finite"
        )


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"a {type(value).__name__} {list(value.shape)}"
    return f"a {type(value).__name__}"

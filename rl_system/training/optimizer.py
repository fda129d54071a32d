"""AdamW whose states and float32 masters are sharded over the ranks (ZeRO-1, arXiv 1910.02054).

A step reduces every bucket of gradients once, updates this rank's shares with torch's own AdamW, and gathers the new
values. All ranks take the same decision about a step, because it rests on numbers that were summed over the ranks:
a loss or gradient that is not finite changes neither parameters nor states, and neither does a gradient that is zero
everywhere, which Adam's momentum and weight decay would otherwise take for an update. Where several ranks share a model, each
does this for its share of the model, among the ranks that have the same share of other copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rl_system.config.optimizer import OptimizerConfig
from rl_system.training.finite import is_finite
from rl_system.training.flat_parameters import FlatParameters, overlaps
from rl_system.training.ranks import Ranks
from rl_system.training.tensor_parallel import agree_on_replicated


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """loss: summed over the ranks. gradient_norm: global, before clipping. applied: whether the step changed anything.
    whole: whether all parameters are finite after it.
    """

    loss: float
    gradient_norm: float
    applied: bool
    whole: bool = True

    @property
    def empty(self) -> bool:
        """There was nothing to learn: no gradient at all."""
        return not self.applied and self.gradient_norm == 0 and math.isfinite(self.loss)

    @property
    def bad(self) -> bool:
        """The loss or the gradient was not finite."""
        return not self.applied and not self.empty


class ShardedAdamW:
    """Owns this rank's shares of the parameters and their states; `flat` belongs to the model.

    first_moment, second_moment, masters: [elements of this rank's shares], concatenated in order, float32 (float64 for
    a float64 model). masters is None where the model itself holds the parameters in that precision.
    """

    def __init__(self, flat: FlatParameters, config: OptimizerConfig, ranks: Ranks) -> None:
        self.flat, self.config, self.ranks = flat, config, ranks
        self.updates = 0
        """Updates applied so far: Adam's step."""
        self.shares = flat.shares(ranks.rank)
        size = sum(share.stop - share.start for share in self.shares)
        self.first_moment = torch.zeros(size, dtype=flat.gradients.dtype, device=flat.gradients.device)
        self.second_moment = torch.zeros_like(self.first_moment)
        self.masters: torch.Tensor | None = None
        if flat.values.dtype != flat.gradients.dtype:
            self.masters = torch.cat([flat.values[share] for share in self.shares]).to(flat.gradients.dtype)
        self._build()

    def _build(self) -> None:
        """Hand torch's AdamW one tensor for each stretch of this rank's shares with one weight decay.

        The tensors, their gradients and their states are views, so there is nothing to copy in or out of it.
        """
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        self._stretches: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        states = {}
        offset = 0
        for share in self.shares:
            for start, stop, decayed in _stretches(self.flat, share):
                where = slice(offset + start - share.start, offset + stop - share.start)
                values = self.flat.values[start:stop] if self.masters is None else self.masters[where]
                stretch = torch.nn.Parameter(values, requires_grad=True)
                groups[decayed].append(stretch)
                self._stretches.append((stretch, self.flat.gradients[start:stop]))
                states[stretch] = {
                    "step": torch.zeros((), dtype=torch.float32, device=values.device),
                    "exp_avg": self.first_moment[where],
                    "exp_avg_sq": self.second_moment[where],
                }
            offset += share.stop - share.start
        config = self.config
        self._adam = torch.optim.AdamW(
            [
                {"params": stretches, "weight_decay": config.weight_decay if decayed else 0.0}
                for decayed, stretches in groups.items()
                if stretches
            ],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
        self._adam.state.update(states)
        for stretch, gradient in self._stretches:
            stretch.grad = gradient

    def states(self) -> dict[str, torch.Tensor]:
        """By name, what a checkpoint keeps beside the parameters; each [elements of this rank's shares], live."""
        states = {"first_moment": self.first_moment, "second_moment": self.second_moment}
        return states if self.masters is None else states | {"masters": self.masters}

    def set_updates(self, updates: int) -> None:
        """Go on counting from `updates`."""
        self.updates = updates
        for state in self._adam.state.values():
            state["step"].fill_(updates)

    @torch.no_grad()
    def step(self, loss: float, learning_rate: float) -> StepOutcome:
        """Reduce, clip, update and gather, where there is a finite gradient; `loss` is this rank's part of the batch's loss.
        Leaves gradients at zero.
        """
        flat = self.flat
        agree_on_replicated(flat.gradient_of, flat.sharding)
        for bucket, share in zip(flat.buckets, self.shares, strict=True):
            self.ranks.reduce_scatter(flat.gradients[bucket], flat.gradients[share])
        loss, square = self._sums(loss)
        norm = math.sqrt(square) if square >= 0 else math.nan
        applied, whole = math.isfinite(loss) and math.isfinite(norm) and norm > 0, True
        if applied:
            self._clip(norm)
            for group in self._adam.param_groups:
                group["lr"] = learning_rate
            self._adam.step()
            self.updates += 1
            self._gather()
            whole = self._parameters_are_finite()
        flat.gradients.zero_()
        return StepOutcome(loss, norm, applied, whole)

    def _parameters_are_finite(self) -> bool:
        """Of the whole model, the same on every rank."""
        broken = sum(not is_finite(self.flat.values[share]) for share in self.shares)
        device = self.flat.gradients.device
        (broken,) = self.ranks.sum([float(broken)], device)
        return self.flat.sharding.group.sum_in_place(torch.tensor([broken], dtype=torch.float64, device=device)).item() == 0

    def _sums(self, loss: float) -> tuple[float, float]:
        """Loss of the whole batch and squared norm of the whole gradient, the same numbers on every rank."""
        group, device = self.flat.sharding.group, self.flat.gradients.device
        square = sum(self._square(share) for share in self.shares)
        if group.size > 1:  # all ranks that share a model have the gradients of what is replicated
            replicated = [slice(slot.start, slot.stop) for slot in self.flat.slots if slot.replicated]
            common = [where for share in self.shares for where, _ in overlaps(share, replicated)]
            square = square - (1 - 1 / group.size) * sum(self._square(where) for where in common)
        loss, square = self.ranks.sum([loss, float(square)], device)
        numbers = torch.tensor([loss / group.size, square], dtype=torch.float64, device=device)
        loss, square = group.sum_in_place(numbers).tolist()
        return loss, square

    def _square(self, where: slice) -> torch.Tensor:
        return torch.linalg.vector_norm(self.flat.gradients[where], dtype=torch.float64).square()

    def _clip(self, norm: float) -> None:
        if norm > self.config.max_grad_norm:
            for share in self.shares:
                self.flat.gradients[share].mul_(self.config.max_grad_norm / norm)

    def _gather(self) -> None:
        offset = 0
        for bucket, share in zip(self.flat.buckets, self.shares, strict=True):
            size = share.stop - share.start
            if self.masters is not None:
                self.flat.values[share].copy_(self.masters[offset : offset + size])
            offset += size
            self.ranks.all_gather(self.flat.values[bucket], self.flat.values[share])


def _stretches(flat: FlatParameters, share: slice) -> list[tuple[int, int, bool]]:
    """`share` cut where weight decay begins or ends: (start, stop, decayed). Padding goes with what precedes it."""
    result: list[tuple[int, int, bool]] = []
    for slot, after in zip(flat.slots, [*(s.start for s in flat.slots[1:]), flat.length], strict=True):
        start, stop = max(slot.start, share.start), min(after, share.stop)
        if start >= stop:
            continue
        if result and result[-1][2] == slot.decayed:
            result[-1] = (result[-1][0], stop, slot.decayed)
        else:
            result.append((start, stop, slot.decayed))
    return result

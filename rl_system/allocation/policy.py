"""When to move an accelerator from one side to the other: a pure state machine over observations.

Owns no task, no clock and no device: it is told observations and answers with decisions, in a run and in the simulator
alike. The same observations give the same decisions, to the bit.

How it decides. Each window gives a measured capacity of either side, in tokens a second, so that a change of the
workload (longer answers, more sharing) shows in the tokens of a group and not in the fitted rates. `RateFit`
extrapolates both capacities over the splits, `end_to_end` joins them with the friction seen so far, and the policy
heads for the best split, one accelerator at a time: half of the way by one decision, each move as soon as the one before
is over, and then it measures again, for what is far away is predicted badly. It decides to move only when

- the predicted gain is at least `margin`; a move that undoes the last one needs another `margin` for each time that
  the direction was changed within the horizon, so that a split that is as good as its neighbour is not left and
  returned to;
- what the gain yields over `horizon_steps` exceeds the cost of the moves by `margin`;
- the present split was measured in an undisturbed window, at least `dwell_steps` after the last move.
"""

from __future__ import annotations

import math
from typing import Any

from rl_system.allocation.decision import Decision, Move
from rl_system.allocation.observation import Observation, Split, SwitchCost
from rl_system.allocation.pipeline import Limit, end_to_end, friction_of, prior_friction
from rl_system.allocation.rates import RateFit
from rl_system.allocation.switch import Side
from rl_system.allocation.symptoms import describe, limiting_factor, other_lever
from rl_system.allocation.tally import Tally
from rl_system.config.allocation import AllocationConfig
from rl_system.errors import UserError

SMOOTHING = 0.3
"""Weight of the newest window in what a group is worth in tokens."""
FRICTION_SMOOTHING = 0.15
"""The same for the friction, which compares two noisy rates."""
MIN_EXPONENT = 0.3
"""Lowest prior on how generation grows: below this the pool's concurrency limits, and the symptoms say so."""
TRAINING_EXPONENT = 0.85
"""Prior on how training grows: parts repeat shared prefixes and are uneven, and an update has costs of its own."""
SAME = 1e-6
"""Relative difference below which two predicted rates are the same, and the nearer split wins."""


class SplitPolicy:
    def __init__(self, config: AllocationConfig) -> None:
        self.config = config
        self._generation: RateFit | None = None
        self._training = RateFit(TRAINING_EXPONENT)
        self._groups = Tally(SMOOTHING)
        """Groups that each side was done with, and the tokens that it spent on them."""
        self._friction: float | None = None
        self._moves: list[tuple[int, Move]] = []
        self._costs: list[SwitchCost] = []
        self._requested: list[Move] = []
        self._course: tuple[Move, int, Split] | None = None
        """Which way more accelerators go by the last decision, how many, and the split from which the next of them does."""
        self._measured: Split | None = None

    def request(self, move: Move, count: int, current: Split) -> None:
        """A person's wish, carried out one accelerator at a time, before anything the policy wants itself.

        Raises UserError where it would leave the bounds, or where `allocation.mode` takes no requests.
        """
        if self.config.mode == "off":
            raise UserError(
                "rebalance: allocation.mode is 'off', in which the split stays as it is; start or resume the run with "
                "'advise' (moves on request alone) or 'auto'"
            )
        pending = current
        for earlier in self._requested:
            pending = earlier.applied(pending)
        target = move.applied(pending, count)
        if count < 1 or not self._allowed(target):
            raise UserError(
                f"rebalance: moving {count} {move.value.replace('_', ' ')} from {pending} would leave {target}; "
                f"allocation.min_rollout is {self.config.min_rollout}, allocation.min_trainer {self.config.min_trainer}"
            )
        self._requested += [move] * count

    @property
    def pending(self) -> int:
        """Accelerators that are to be moved as soon as can be: a person asked for it, or the last decision goes on."""
        return len(self._requested) + (self._course[1] if self._course else 0)

    def observe(self, observation: Observation) -> Decision:
        """Learn from one window and decide what happens at the step boundary that ends it."""
        self._learn(observation)
        current, limit = observation.split, limiting_factor(observation)
        course, self._course = self._course, None
        if self._requested:
            return self._serve_request(observation, limit)
        if course is not None and course[2] == current:
            return self._go_on(course, observation, limit)
        if self.config.mode == "off":
            return Decision(None, "allocation.mode is off", current, current, limit)
        if not self._ready:
            return Decision(None, "nothing was measured yet", current, current, limit)
        predicted = self._predict(observation)
        best = self._best(predicted, current)
        advice, reason = self._weigh(observation, predicted, best, limit)
        move = advice if self.config.mode == "auto" else None
        if move is not None:
            self._record(move, observation.step)
            self._set_course(move, math.ceil(abs(best.rollout - current.rollout) / 2) - 1, current)
        return Decision(move, reason, current, best, limit, advice, predicted)

    def place(self, current: Split) -> Side:
        """The side on which one more accelerator is predicted to help most; generation while nothing is known."""
        if not self._ready:
            return Side.ROLLOUT
        more = {Side.ROLLOUT: Split(current.rollout + 1, current.trainer),
                Side.TRAINER: Split(current.rollout, current.trainer + 1)}  # fmt: skip
        return max(more, key=lambda side: end_to_end(*self._capacities(more[side], current), self._friction))

    # -- learning ------------------------------------------------------------------------------------------------

    def _learn(self, observation: Observation) -> None:
        self._costs += observation.switches
        if observation.disturbed:
            self._measured = None
            return
        rollout, trainer = observation.rollout, observation.trainer
        seconds = observation.seconds
        self._groups.add(finished=rollout.groups_per_s * seconds, sampled=rollout.tokens_per_s * seconds)
        if rollout.groups_per_s > 0 and rollout.tokens_per_s > 0:
            if self._generation is None:
                # In a closed loop of C episodes with tool time Z and time R in the engines, X = C / (Z + R) and
                # R ~ 1/n: d log X / d log n = R / (Z + R), the share of an episode that more engines can shorten.
                self._generation = RateFit(exponent=max(1.0 - rollout.tool_share, MIN_EXPONENT))
            capacity, deviation = generation_capacity(observation)
            self._generation.update(rollout.accelerators, capacity, deviation)
        if trainer.groups_per_s > 0 and trainer.seconds_per_update > 0:
            computed = computed_tokens_per_group(observation)
            groups_per_busy_s = observation.groups_per_batch / trainer.seconds_per_update
            self._training.update(trainer.accelerators, groups_per_busy_s * computed)
            trained = trainer.groups_per_s * seconds
            self._groups.add(trained=trained, computed=trained * computed)
            self._measured = observation.split
        if self._ready:
            seen = friction_of(trainer.groups_per_s, *self._capacities(observation.split, observation.split))
            old = prior_friction(observation.max_staleness) if self._friction is None else self._friction
            self._friction = old + FRICTION_SMOOTHING * (seen - old)

    @property
    def _ready(self) -> bool:
        """Both sides were measured."""
        return self._generation is not None and self._training.measurements > 0

    # -- predicting ----------------------------------------------------------------------------------------------

    def _allowed(self, split: Split) -> bool:
        return split.rollout >= self.config.min_rollout and split.trainer >= self.config.min_trainer

    def _predict(self, observation: Observation) -> dict[Split, float]:
        total = sum(observation.split)
        splits = [Split(rollout, total - rollout) for rollout in range(1, total)]
        return {
            split: end_to_end(*self._capacities(split, observation.split), self._friction)
            for split in splits
            if self._allowed(split) or split == observation.split
        }

    def _capacities(self, split: Split, current: Split) -> tuple[float, float]:
        """Groups/s of generation and of training in `split`."""
        generation = self._generation.rate(split.rollout, current.rollout) / self._groups.ratio("sampled", "finished")
        training = self._training.rate(split.trainer, current.trainer) / self._groups.ratio("computed", "trained")
        return generation, training

    @staticmethod
    def _best(predicted: dict[Split, float], current: Split) -> Split:
        """The nearest of the fastest splits; of two as near, the one with more rollout."""
        top = max(predicted.values())
        fastest = [split for split, rate in predicted.items() if rate >= top * (1 - SAME)]
        return min(fastest, key=lambda split: (abs(split.rollout - current.rollout), -split.rollout))

    # -- deciding ------------------------------------------------------------------------------------------------

    def _weigh(
        self, observation: Observation, predicted: dict[Split, float], best: Split, limit: Limit
    ) -> tuple[Move | None, str]:
        current, config = observation.split, self.config
        now, then = predicted[current], predicted[best]
        symptoms = describe(observation, limit)
        if best == current:
            return None, f"{symptoms}; no other split is predicted faster than {now:.3g} groups/s"
        move = Move.TO_ROLLOUT if best.rollout > current.rollout else Move.TO_TRAINER
        moves, gain = abs(best.rollout - current.rollout), then / now - 1
        if other_lever(limit, move):
            return None, f"{symptoms}; no accelerator moves for that"
        margin = self.margin(move, observation.step)
        cost_s = moves * self.switch_cost_s(move)
        horizon_s = config.horizon_steps * observation.groups_per_batch / now
        outlook = f"{symptoms}; {best} is predicted at {then:.3g} groups/s against {now:.3g} now ({gain:+.0%})"
        if gain < margin:
            return None, f"{outlook}, less than the margin of {margin:.0%}"
        if gain * horizon_s <= (1 + config.margin) * cost_s:
            return None, (
                f"{outlook}, but over {config.horizon_steps} steps this gains {gain * horizon_s:.0f} s of production "
                f"and {moves} move(s) cost {cost_s:.0f} s"
            )
        if self._measured != current:
            return None, f"{outlook}, but {current} was not measured undisturbed yet"
        waited = observation.step - self._moves[-1][0] if self._moves else config.dwell_steps
        if waited < config.dwell_steps:
            return None, f"{outlook}, but the last move is {waited} of {config.dwell_steps} steps ago"
        return move, f"{outlook}: one {move.value.replace('_', ' ')}"

    def margin(self, move: Move, step: int) -> float:
        """Least relative gain at which `move` is made at `step`."""
        recent = [made for at, made in self._moves if step - at <= self.config.horizon_steps]
        if not recent or recent[-1] is move:
            return self.config.margin
        turns = sum(a is not b for a, b in zip(recent, recent[1:], strict=False))
        return self.config.margin * (2 + turns)

    def switch_cost_s(self, move: Move) -> float:
        """Mean lost seconds of a move this way: those measured, and the configured guess counted once."""
        measured = [cost.seconds for cost in self._costs if cost.to_rollout == (move is Move.TO_ROLLOUT)]
        return (self.config.switch_cost_s + sum(measured)) / (1 + len(measured))

    def _serve_request(self, observation: Observation, limit: Limit) -> Decision:
        current, move = observation.split, self._requested[0]
        target = move.applied(current)
        if not self._allowed(target):
            self._requested.clear()
            return Decision(None, f"the request is void: {target} is outside the bounds", current, current, limit)
        self._requested.pop(0)
        self._record(move, observation.step)
        reason = f"requested: one {move.value.replace('_', ' ')}, {len(self._requested)} more to come"
        return Decision(move, reason, current, target, limit, move)

    def _go_on(self, course: tuple[Move, int, Split], observation: Observation, limit: Limit) -> Decision:
        move, left, current = course
        self._record(move, observation.step)
        self._set_course(move, left - 1, current)
        reason = f"the last decision goes on: one more {move.value.replace('_', ' ')}, {left - 1} to come"
        return Decision(move, reason, current, move.applied(current, left), limit, move)

    def _set_course(self, move: Move, left: int, current: Split) -> None:
        self._course = (move, left, move.applied(current)) if left else None

    def _record(self, move: Move, step: int) -> None:
        self._moves.append((step, move))
        self._measured = None

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs, as plain JSON values. Pending requests are not in it."""
        return {
            "generation": self._generation.state() if self._generation else None,
            "training": self._training.state(),
            "groups": self._groups.state(),
            "friction": self._friction,
            "moves": [[step, move.value] for step, move in self._moves],
            "costs": [[cost.to_rollout, cost.seconds] for cost in self._costs],
        }

    def restore(self, state: dict[str, Any]) -> None:
        if state["generation"] is not None:
            self._generation = RateFit()
            self._generation.restore(state["generation"])
        self._training.restore(state["training"])
        self._groups.restore(state["groups"])
        self._friction = state["friction"]
        self._moves = [(step, Move(move)) for step, move in state["moves"]]
        self._costs = [SwitchCost(to_rollout, seconds) for to_rollout, seconds in state["costs"]]


def generation_capacity(observation: Observation) -> tuple[float, float]:
    """Sampled tokens/s that generation would reach with every slot of the pool taken, and its log deviation.

    A side that was held back shows less than it can. With a share w of the slots empty for want of permits the
    capacity is at most `rate / (1 − w)`, reached if episodes do not slow each other down; and at least `rate / (1 −
    i)`, with i the share of engine time that stood idle, of which no more than w is due to the permits: engines that
    were never idle may be saturated. The estimate is the geometric mean of the two, and its deviation that of a
    uniform distribution between them, so a window in which nothing was held back counts fully and others only as far
    as they show anything.
    """
    rollout = observation.rollout
    waiting = min(rollout.waiting, 0.95)
    low = rollout.tokens_per_s / (1 - min(rollout.idle, waiting))
    high = rollout.tokens_per_s / (1 - waiting)
    broken = rollout.failures / max(rollout.failures + rollout.groups_per_s * observation.seconds, 1.0)
    return math.sqrt(low * high), math.hypot(math.log(high / low) / math.sqrt(12), broken)


def computed_tokens_per_group(observation: Observation) -> float:
    """Tokens that the trainers run through the model for one group: each unique token once with the tree."""
    trainer = observation.trainer
    sharing = trainer.compression if trainer.method == "tree" else 1.0
    return trainer.tokens_per_s / trainer.groups_per_s / sharing

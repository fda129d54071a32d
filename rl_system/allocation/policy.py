"""When to move an accelerator from one side to the other: a pure state machine over observations.

Owns no task, no clock and no device: it is told observations and answers with decisions, in a run and in the simulator
alike. The same observations give the same decisions, to the bit.

How it decides. `Forecast` learns from every window and predicts the end-to-end rate of every split. The policy heads for the
best one, one accelerator at a time: half of the way by one decision, each move as soon as the one before is over, and then it
measures again, for what is far away is predicted badly. It decides to move only when

- the predicted gain is at least `margin`; a move that undoes the last one needs twice as much, and twice again for each time
  that the direction was changed lately, so that a split that is as good as its neighbour is not left and returned to;
- what the gain yields over `horizon_steps`, or what is left of the run, exceeds the cost of the moves by `margin`;
- the present split was measured in an undisturbed window, at least `dwell_steps` after the last move.
"""

from __future__ import annotations

import math
from typing import Any

from rl_system.allocation.decision import Decision, Move
from rl_system.allocation.forecast import Forecast
from rl_system.allocation.observation import Observation, Split, SwitchCost
from rl_system.allocation.pipeline import Limit
from rl_system.allocation.switch import Side
from rl_system.allocation.symptoms import describe, limiting_factor, other_lever
from rl_system.config.allocation import AllocationConfig
from rl_system.errors import UserError

MEMORY = 2
"""Horizons for which a change of direction is remembered."""
USUAL_BATCH = 16
"""Groups a batch up to which `margin` counts as it is; larger ones make windows surer, by the square root."""
SAME = 1e-6
"""Relative difference below which two predicted rates are the same, and the nearer split wins."""


class SplitPolicy:
    def __init__(self, config: AllocationConfig) -> None:
        self.config = config
        self._forecast = Forecast()
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
        self._costs += observation.switches
        if observation.disturbed:
            self._measured = None
        else:
            self._forecast.learn(observation)
            if observation.trainer.groups_per_s > 0:
                self._measured = observation.split
        current, limit = observation.split, limiting_factor(observation)
        course, self._course = self._course, None
        if self._requested:
            return self._serve_request(observation, limit)
        if course is not None and course[2] == current:
            return self._go_on(course, observation, limit)
        if self.config.mode == "off":
            return Decision(None, "allocation.mode is off", current, current, limit)
        if not self._forecast.ready:
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
        if not self._forecast.ready:
            return Side.ROLLOUT
        more = [Split(current.rollout + 1, current.trainer), Split(current.rollout, current.trainer + 1)]
        generating, training = (self._forecast.rate(split, current) for split in more)
        return Side.ROLLOUT if generating >= training else Side.TRAINER

    # -- deciding ------------------------------------------------------------------------------------------------

    def _allowed(self, split: Split) -> bool:
        return split.rollout >= self.config.min_rollout and split.trainer >= self.config.min_trainer

    def _predict(self, observation: Observation) -> dict[Split, float]:
        total, current = sum(observation.split), observation.split
        splits = [Split(rollout, total - rollout) for rollout in range(1, total)]
        return {
            split: self._forecast.rate(split, current)
            for split in splits
            if self._allowed(split) or split == current
        }

    @staticmethod
    def _best(predicted: dict[Split, float], current: Split) -> Split:
        """The nearest of the fastest splits; of two as near, the one with more rollout."""
        top = max(predicted.values())
        fastest = [split for split, rate in predicted.items() if rate >= top * (1 - SAME)]
        return min(fastest, key=lambda split: (abs(split.rollout - current.rollout), -split.rollout))

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
        margin *= min(1.0, math.sqrt(USUAL_BATCH / observation.groups_per_batch))
        cost_s = moves * self.switch_cost_s(move)
        left = observation.steps_left
        horizon = config.horizon_steps if left is None else min(config.horizon_steps, left)
        horizon_s = horizon * observation.groups_per_batch / now
        outlook = f"{symptoms}; {best} is predicted at {then:.3g} groups/s against {now:.3g} now ({gain:+.0%})"
        if gain < margin:
            return None, f"{outlook}, less than the margin of {margin:.0%}"
        if gain * horizon_s <= (1 + config.margin) * cost_s:
            return None, (
                f"{outlook}, but over {horizon} steps this gains {gain * horizon_s:.0f} s of production "
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
        recent = [made for at, made in self._moves if step - at <= MEMORY * self.config.horizon_steps]
        if not recent or recent[-1] is move:
            return self.config.margin
        turns = sum(a is not b for a, b in zip(recent, recent[1:], strict=False))
        return self.config.margin * 2 ** (1 + turns)

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
            "forecast": self._forecast.state(),
            "moves": [[step, move.value] for step, move in self._moves],
            "costs": [[cost.to_rollout, cost.seconds] for cost in self._costs],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._forecast.restore(state["forecast"])
        self._moves = [(step, Move(move)) for step, move in state["moves"]]
        self._costs = [SwitchCost(to_rollout, seconds) for to_rollout, seconds in state["costs"]]

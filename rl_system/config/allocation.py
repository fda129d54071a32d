from typing import Literal

from pydantic import Field, model_validator

from rl_system.allocation.observation import Split
from rl_system.config.section import Section


class Pace(Section):
    """The speed of one accelerator from policy update `step` on."""

    step: int = Field(ge=0)
    sampled_tokens_per_s: float = Field(gt=0)
    trained_tokens_per_s: float = Field(gt=0)
    """Unique tokens of a batch that one trainer gets through a second."""


class AllocationConfig(Section):
    """How accelerators are split between generation and training."""

    rollout: int = Field(1, ge=1)
    trainer: int = Field(1, ge=1)
    mode: Literal["off", "advise", "auto"] = "advise"
    """off: the split stays and nothing is predicted. advise: the split that would be chosen is reported, and taken only
    where a person asks for it (`python -m launch.rebalance`). auto: it is taken, one accelerator at a time."""
    elastic: bool = False
    """Accelerators of nodes that join the Ray cluster during the run are taken in, and those of nodes that drain or die
    are given up. The optimizer states on a trainer whose node dies without a warning are lost, which ends the run; --resume
    goes on from its last checkpoint."""
    min_rollout: int = Field(1, ge=1)
    min_trainer: int = Field(1, ge=1)
    window_steps: int = Field(2, ge=1)
    """Policy updates between two decisions: one window of measurement."""
    dwell_steps: int = Field(4, ge=1)
    """Fewest policy updates between a move and the next decision to move. One decision may move several accelerators, one
    after the other, where the best split is far away."""
    horizon_steps: int = Field(50, ge=1)
    """Steps over which a gain must repay the switch, or those that are left of the run if fewer."""
    margin: float = Field(0.03, ge=0)
    """Predicted relative gain below which the split stays; less where a batch has more than 16 groups, and more after a turn."""
    switch_cost_s: float = Field(30.0, ge=0)
    """Guess of the production time that one move costs, in seconds; measured costs take over."""
    handover_timeout_s: float = Field(60.0, gt=0)
    """Longest that a rollout worker whose accelerator is moved waits for its turns to be taken over by others."""
    start_timeout_s: float = Field(900.0, gt=0)
    """Longest that a rollout worker or trainer takes to load its model, or the trainers to deal out their states anew.
    Large models take minutes."""
    join_timeout_s: float = Field(120.0, gt=0)
    """Longest that the trainers of a group that is formed anew wait for each other."""
    pace: tuple[Pace, ...] = ()
    """Have accelerators stand for devices of known speeds, in order of `step`: what either side does faster is held back,
    turns in the order in which they were begun. So slots that share a few cores show what a move would bring on devices of
    their own, and a load that changes under a run can be tried. Empty: everything goes as fast as it can."""
    trainer_threads: int = Field(1, ge=1)
    """CPU threads of one trainer."""
    tensor_parallel: int = Field(1, ge=1)
    """Neighbouring trainers that share one copy of a model: its heads and feed-forward units are dealt out to them, and every
    layer of every block ends in sums over them. For models that do not fit one accelerator. The split stays then."""

    @property
    def accelerators(self) -> int:
        return self.rollout + self.trainer

    @property
    def start(self) -> Split:
        """The split that a run begins with."""
        return Split(self.rollout, self.trainer)

    @property
    def reachable(self) -> list[Split]:
        """The splits that a run may come to by itself."""
        if self.mode != "auto":
            return [self.start]
        most = self.accelerators - self.min_trainer
        return [Split(rollout, self.accelerators - rollout) for rollout in range(self.min_rollout, most + 1)]

    @property
    def copies(self) -> int:
        """Copies of the model that are trained on different parts of a batch at the start."""
        return self.trainer // self.tensor_parallel

    @model_validator(mode="after")
    def copies_are_whole_and_stay(self) -> "AllocationConfig":
        if self.trainer % self.tensor_parallel:
            raise ValueError(
                f"allocation.tensor_parallel is {self.tensor_parallel}, which does not divide allocation.trainer "
                f"{self.trainer}; use a divisor"
            )
        if self.tensor_parallel > 1 and self.mode != "off":
            raise ValueError(
                f"allocation.tensor_parallel is {self.tensor_parallel}, but in allocation.mode {self.mode!r} accelerators "
                "change sides one by one, and one alone holds no copy of the model; use 'off'"
            )
        return self

    @model_validator(mode="after")
    def starts_within_bounds(self) -> "AllocationConfig":
        for side in ("rollout", "trainer"):
            start, least = getattr(self, side), getattr(self, f"min_{side}")
            if start < least:
                raise ValueError(
                    f"allocation.{side} is {start}, below allocation.min_{side} {least}; start with at least {least}"
                )
        steps = [pace.step for pace in self.pace]
        if steps and (steps[0] != 0 or steps != sorted(set(steps))):
            raise ValueError(f"allocation.pace begins at steps {steps}; 0 comes first, and each is later than the one before")
        if self.elastic and self.mode == "off":
            raise ValueError(
                "allocation.elastic is true, but allocation.mode is 'off', in which the split stays as it is; use 'advise' "
                "or 'auto'"
            )
        return self

from typing import Literal

from pydantic import Field, model_validator

from rl_system.allocation.observation import Split
from rl_system.config.section import Section


class AllocationConfig(Section):
    """How accelerators are split between generation and training."""

    rollout: int = Field(1, ge=1)
    trainer: int = Field(1, ge=1)
    mode: Literal["off", "advise", "auto"] = "advise"
    """off: the split stays and nothing is predicted. advise: the split that would be chosen is reported, and taken only
    where a person asks for it (`python -m launch.rebalance`). auto: it is taken, one accelerator at a time."""
    min_rollout: int = Field(1, ge=1)
    min_trainer: int = Field(1, ge=1)
    window_steps: int = Field(2, ge=1)
    """Policy updates between two decisions: one window of measurement."""
    dwell_steps: int = Field(4, ge=1)
    """Fewest policy updates between a move and the next decision to move. One decision may move several accelerators, one
    after the other, where the best split is far away."""
    horizon_steps: int = Field(50, ge=1)
    """Steps over which a gain must repay the switch."""
    margin: float = Field(0.05, ge=0)
    """Predicted relative gain below which the split stays."""
    switch_cost_s: float = Field(60.0, ge=0)
    """Guess of the production time that one move costs, in seconds; measured costs take over."""
    handover_timeout_s: float = Field(60.0, gt=0)
    """Longest that a rollout worker whose accelerator is moved waits for its turns to be taken over by others."""
    start_timeout_s: float = Field(900.0, gt=0)
    """Longest that a rollout worker or trainer takes to load its model, or the trainers to deal out their states anew.
    Large models take minutes."""
    join_timeout_s: float = Field(120.0, gt=0)
    """Longest that the trainers of a group that is formed anew wait for each other."""
    trainer_threads: int = Field(1, ge=1)
    """CPU threads of one trainer."""

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

    @model_validator(mode="after")
    def starts_within_bounds(self) -> "AllocationConfig":
        for side in ("rollout", "trainer"):
            start, least = getattr(self, side), getattr(self, f"min_{side}")
            if start < least:
                raise ValueError(
                    f"allocation.{side} is {start}, below allocation.min_{side} {least}; start with at least {least}"
                )
        return self

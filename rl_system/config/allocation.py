from typing import Literal

from pydantic import Field

from rl_system.config.section import Section


class AllocationConfig(Section):
    """How accelerators are split between generation and training."""

    rollout: int = Field(1, ge=1)
    trainer: int = Field(1, ge=1)
    mode: Literal["off", "advise"] = "advise"
    horizon_steps: int = Field(50, ge=1)
    """Steps over which a gain must repay the switch."""
    margin: float = Field(0.1, ge=0)
    """Predicted relative gain below which the split stays."""
    trainer_threads: int = Field(1, ge=1)
    """CPU threads of one trainer."""

    @property
    def accelerators(self) -> int:
        return self.rollout + self.trainer

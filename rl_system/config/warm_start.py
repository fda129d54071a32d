from pydantic import Field

from rl_system.config.section import Section


class WarmStartConfig(Section):
    """The supervised phase before RL."""

    enabled: bool = False
    steps: int = Field(8, ge=1)
    demonstrations_per_step: int = Field(16, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    stop_loss: float = Field(0.0, ge=0)
    """Stop early once the mean loss per trained token falls below this, so that RL has room."""

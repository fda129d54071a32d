from pydantic import Field

from rl_system.config.fields import Seed
from rl_system.config.section import Section


class WarmStartConfig(Section):
    """The supervised phase before RL. Its result is cached: runs that agree in what goes into it share one."""

    enabled: bool = False
    steps: int = Field(12, ge=1)
    """Most updates."""
    demonstrations_per_step: int = Field(12, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    warmup_steps: int = Field(2, ge=0)
    """Updates over which the learning rate rises."""
    stop_probability: float = Field(1.0, gt=0, le=1)
    """Stop before an update once the policy samples whole demonstrations, none of which it has trained on, with this
    probability on average: enough for rollouts that succeed, and room left for RL."""
    seed: Seed = 0
    """Order of the demonstrations. Not the run's seed, so that runs with several seeds start from one model."""

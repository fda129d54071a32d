from pydantic import Field

from rl_system.config.section import Section


class CheckpointConfig(Section):
    every: int = Field(0, ge=0)
    """Steps between checkpoints; 0: only at the end."""
    keep: int = Field(2, ge=1)

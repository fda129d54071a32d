from pydantic import Field

from rl_system.config.section import Section


class CheckpointConfig(Section):
    """What a run goes on from after it was killed. A checkpoint is written while the trainers stand still: parameters,
    master weights and both AdamW moments, that is 12 bytes a parameter in float32 and 14 in bfloat16.
    """

    every: int = Field(10, ge=0)
    """Steps between checkpoints, and so the most that are done again after a kill; 0: only after the last step."""
    keep: int = Field(2, ge=1)
    """Newest checkpoints that stay. With one alone there is none to fall back to where it proves damaged."""

    def due(self, step: int, steps: int) -> bool:
        """Whether one is written after `step` of `steps`."""
        return step > 0 and (step >= steps or (self.every > 0 and step % self.every == 0))

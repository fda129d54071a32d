from pydantic import Field

from rl_system.config.section import Section


class EvaluationConfig(Section):
    split: str = "test"
    every: int = Field(0, ge=0)
    """Steps between evaluations; 0: only before and after the run."""
    before: bool = True
    after: bool = True
    episodes_per_task: int = Field(1, ge=1)
    max_tasks: int | None = Field(None, ge=1)
    temperature: float = Field(0.0, ge=0)

    def due(self, step: int, steps: int) -> bool:
        """Whether the policy is evaluated after `step` of `steps` updates; once, for however many reasons."""
        if step == 0:
            return self.before
        return (self.every > 0 and step % self.every == 0) or (self.after and step == steps)

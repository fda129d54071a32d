from pydantic import Field

from rl_system.config.section import Section


class CurriculumConfig(Section):
    """Draw tasks by how often their episodes succeed, in place of every task once an epoch."""

    enabled: bool = False
    uniform_share: float = Field(0.2, gt=0, le=1)
    """Share of the draws that go to all tasks alike: what is always or never solved today comes back now and then."""
    memory: float = Field(0.9, gt=0, lt=1)
    """What earlier episodes of a task count for, beside those of its latest group: the policy moves on."""

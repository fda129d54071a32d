from pydantic import Field

from rl_system.config.section import Section


class RecoveryConfig(Section):
    """What a run does when it loses an actor that has nobody to take its place: a trainer, the environment pool, the reward
    actor, the dispatcher or the controller. Rollout workers are replaced one by one and are not counted here.
    """

    attempts: int = Field(3, ge=0)
    """Times in a row, without a step further than before, that all actors are started anew from the newest checkpoint;
    0: the run ends at the first loss, and `--resume` goes on."""

from typing import Literal

from pydantic import Field

from rl_system.config.section import Section

Treatment = Literal["as_is", "zero_reward", "mask"]


class AlgorithmConfig(Section):
    advantage: str = "grpo"
    """Advantage estimator, by its name in `rl_system.algorithms.advantages`."""
    objective: str = "decoupled_ppo"
    """Objective, by its name in `rl_system.algorithms.objectives`."""
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    dual_clip: float | None = Field(None, gt=1)
    behaviour_cap: float | None = Field(5.0, gt=0)
    """Cap on the ratio proximal / behaviour (decoupled objectives)."""
    entropy_coefficient: float = 0.0
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    drop_zero_signal: bool = True
    """Drop groups whose members all earned the same."""
    reward_scale: float = 1.0
    reward_offset: float = 0.0
    truncated: Treatment = "zero_reward"
    """What an episode cut short by a budget contributes: its own reward, reward 0, or no loss at all."""
    malformed_call_penalty: float = Field(0.0, ge=0)
    updates_per_batch: int = Field(1, ge=1)

from typing import Literal

from pydantic import Field

from rl_system.config.section import Section


class OptimizerConfig(Section):
    """AdamW, its schedule, and what counts as a bad step."""

    learning_rate: float = Field(1e-5, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    """Not applied to norms and biases."""
    max_grad_norm: float = Field(1.0, gt=0)
    warmup_steps: int = Field(0, ge=0)
    decay: Literal["constant", "linear", "cosine"] = "constant"
    min_learning_rate_ratio: float = Field(0.1, ge=0, le=1)
    max_bad_steps: int = Field(3, ge=1)
    """Steps with a loss or gradient that is not finite are skipped; after this many in a row the run stops."""
    rank_timeout_s: float = Field(1800.0, gt=0)
    """Longest that a trainer waits for the others in a reduction; then the run stops instead of hanging."""

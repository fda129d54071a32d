from pydantic import Field

from rl_system.config.section import Section


class CriticConfig(Section):
    """The critic that `algorithm.advantage` 'gae' trains beside the policy: a second model that starts from the same
    parameters, with one value a token in place of logits."""

    discount: float = Field(1.0, gt=0, le=1)
    """γ, by sampled token."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ, by sampled token. 1: what was earned, minus the value; towards 0: the critic is trusted more and more."""
    value_clip: float | None = Field(0.2, gt=0)
    """A value counts as moved by this at most in one step's updates; None: no bound."""
    learning_rate: float = Field(1e-5, gt=0)
    """Of the critic's own optimizer; in everything else the section `optimizer` holds for it too."""

import math
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rl_system.algorithms import registry
from rl_system.config.critic import CriticConfig
from rl_system.config.section import Section
from rl_system.records import Ending

Treatment = Literal["as_is", "zero_reward", "mask"]


class AlgorithmConfig(Section):
    """What a rollout is worth and what the policy learns from it."""

    advantage: str = "grpo"
    """Advantage estimator, by its name in `rl_system.algorithms.advantages`."""
    normalise_batch: bool | None = None
    """Bring the advantages of a step to mean 0 and deviation 1 over its trained tokens, after the groups. None: as is
    usual with the estimator."""
    drop_zero_signal: bool = True
    """Drop groups whose members all earned the same, where the estimator compares members."""
    credit: Literal["last", "spread"] = "last"
    """Where in an episode its advantage is earned: at the last turn of each branch, or in equal parts at every turn. A turn
    with a reward of its own is credited with that alone."""
    turn_discount: float = Field(1.0, gt=0, le=1)
    """A turn is credited with what is earned from it on, discounted by this for each turn in between."""
    critic: CriticConfig = CriticConfig()
    """Only where the advantage estimator needs one."""

    objective: str = "decoupled_ppo"
    """Objective, by its name in `rl_system.algorithms.objectives`."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """The ratio counts down to 1 − clip_low; 1 leaves that side open."""
    clip_high: float = Field(0.2, ge=0)
    """The ratio counts up to 1 + clip_high."""
    dual_clip: float | None = Field(None, gt=1)
    """Where the advantage is negative, the ratio counts up to this at most."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of the bonus for the entropy of the next-token distribution."""
    measure_entropy: bool = True
    """Report `train/entropy` also where the loss does not need it; a few passes over the logits."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL divergence from the reference policy, which is the model the run started from."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence, by its usual name."""
    kl_in: Literal["loss", "reward"] = "loss"
    """loss: a term of the loss. reward: taken from the advantage of a token, with what follows it in its sequence."""
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """How token losses add up to the loss of a step."""
    constant_length: int | None = Field(None, ge=1)
    """Tokens that a sequence counts for under the aggregation `constant`."""
    updates_per_batch: int = Field(1, ge=1)
    """Optimizer steps on one batch, each on a part of its sequences."""

    proximal: Literal["exact", "loglinear"] = "exact"
    """The policy at the start of a batch's updates. exact: the current one while `updates_per_batch` is 1, else
    recomputed by a pass before the first update. loglinear: between behaviour and current, by staleness, without a
    pass.
    """
    correction: str = "tis"
    """Treatment of the ratio proximal / behaviour, by its name in `rl_system.algorithms.corrections`."""
    behaviour_cap: float | None = Field(5.0, gt=0)
    """Largest ratio proximal / behaviour of a token; None: no bound."""
    behaviour_floor: float = Field(0.5, ge=0)
    """Smallest ratio proximal / behaviour of a token that `icepop` lets through."""
    sequence_ratio_low: float = Field(0.9, ge=0)
    """Smallest geometric mean of a sequence's ratios that `sequence_rejection` lets through."""
    sequence_ratio_high: float = Field(1.1, gt=0)
    """Largest geometric mean of a sequence's ratios that `sequence_rejection` lets through."""
    mask_staleness_above: int | None = Field(None, ge=0)
    """Leave out sequences with a token sampled more than this many policy updates ago; None: keep all."""

    reward_scale: float = 1.0
    reward_offset: float = 0.0
    truncated: Treatment = "zero_reward"
    """What an episode cut short by a budget contributes: its own reward, reward 0, or nothing at all."""
    endings: dict[Ending, Treatment] = {}
    """The same by ending, where one is to be treated otherwise than `truncated` says: `max_turns`, `max_errors`,
    `max_tokens`, `timeout`, `agent_error`."""
    malformed_call_penalty: float = Field(0.0, ge=0)
    """Taken from the shaped reward for each tool call that could not be parsed."""
    tool_error_penalty: float = Field(0.0, ge=0)
    """Taken from the shaped reward for each tool call that failed: it could not be parsed, named no tool, had wrong
    arguments, or was refused by the environment."""
    length_penalty: float = Field(0.0, ge=0)
    """Taken from the shaped reward of an episode that sampled `length_penalty_full` tokens or more."""
    length_penalty_start: int = Field(0, ge=0)
    """Sampled tokens of an episode from which on the length penalty grows, in proportion, up to its full size."""
    length_penalty_full: int = Field(0, ge=0)

    def treatment(self, ended: Ending) -> Treatment:
        """Of an episode that ended so. What came to its own end counts as it is; what failed says nothing."""
        if ended is Ending.FAILED:
            return "mask"
        return "as_is" if ended.finished else self.endings.get(ended, self.truncated)

    @property
    def compares_members(self) -> bool:
        """Whether the advantage estimator needs groups of at least two."""
        return registry.find("advantages", self.advantage).compares

    @field_validator("advantage", "objective", "correction")
    @classmethod
    def implementation_exists(cls, name: str, info: ValidationInfo) -> str:
        kind = registry.kind_of(f"algorithm.{info.field_name}")
        if name not in registry.names(kind):
            raise ValueError(registry.explain_unknown(kind, name))
        return name

    @field_validator("endings")
    @classmethod
    def only_truncated_endings_are_a_choice(cls, endings: dict[Ending, Treatment]) -> dict[Ending, Treatment]:
        for ended in endings:
            if ended.finished or ended is Ending.FAILED:
                choice = ", ".join(each for each in Ending if not each.finished and each is not Ending.FAILED)
                raise ValueError(
                    f"algorithm.endings names {ended!s}, which is no choice: an episode that came to its own end counts as "
                    f"it is, and one that failed is never trained on; a treatment can be given to {choice}"
                )
        return endings

    @model_validator(mode="after")
    def fields_agree(self) -> "AlgorithmConfig":
        if self.aggregation == "constant" and self.constant_length is None:
            raise ValueError(
                "algorithm.aggregation is 'constant', but algorithm.constant_length is not set; give the number of "
                "tokens that every sequence counts for, such as the longest response"
            )
        if self.reward_scale == 0:
            raise ValueError("algorithm.reward_scale is 0: all episodes would earn the same; 1.0 leaves rewards alone")
        if self.kl_coefficient and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                "algorithm.kl_estimator is 'k1' with algorithm.kl_in 'loss': the gradient of k1 is zero on average, "
                "so it would only add noise; use k2 or k3 in the loss, or k1 in the reward"
            )
        if self.kl_coefficient and self.kl_in == "reward" and self.objective == "sft":
            raise ValueError(
                "algorithm.kl_in is 'reward', which lowers advantages, but algorithm.objective 'sft' looks at none; use "
                "kl_in 'loss', or another objective"
            )
        if self.length_penalty and self.length_penalty_full <= self.length_penalty_start:
            raise ValueError(
                f"algorithm.length_penalty_full is {self.length_penalty_full}, not above "
                f"algorithm.length_penalty_start {self.length_penalty_start}; give the number of sampled tokens at "
                f"which the penalty is {self.length_penalty}"
            )
        return self

    @model_validator(mode="after")
    def bounds_let_the_policys_own_tokens_through(self) -> "AlgorithmConfig":
        if self.sequence_ratio_low > self.sequence_ratio_high:
            raise ValueError(
                f"algorithm.sequence_ratio_low is {self.sequence_ratio_low}, above algorithm.sequence_ratio_high "
                f"{self.sequence_ratio_high}: every sequence would be rejected; use bounds around 1"
            )
        if self.correction == "sequence_rejection" and not self.sequence_ratio_low <= 1 <= self.sequence_ratio_high:
            raise ValueError(
                f"algorithm.sequence_ratio_low is {self.sequence_ratio_low} and algorithm.sequence_ratio_high "
                f"{self.sequence_ratio_high}: sequences that the policy itself sampled have a ratio of 1 and would be "
                "rejected; use bounds around 1"
            )
        cap = math.inf if self.behaviour_cap is None else self.behaviour_cap
        if self.correction == "icepop" and not self.behaviour_floor <= 1 <= cap:
            raise ValueError(
                f"algorithm.behaviour_floor is {self.behaviour_floor} and algorithm.behaviour_cap {self.behaviour_cap}; "
                "tokens that the policy itself sampled have a ratio of 1 and would be masked: use a floor below 1 and "
                "a cap above 1"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"algorithm.dual_clip is {self.dual_clip}, not above 1 + algorithm.clip_high {self.clip_high:g}: it "
                "would hold ratios that the clip lets through; use a larger one (3.0 is usual)"
            )
        return self

    @model_validator(mode="after")
    def a_critic_has_something_to_say(self) -> "AlgorithmConfig":
        if not registry.find("advantages", self.advantage).critic:
            return self
        if self.turn_discount != 1:
            raise ValueError(
                f"algorithm.turn_discount is {self.turn_discount}, but algorithm.advantage {self.advantage!r} lets a "
                "critic say what each token was worth; leave it at 1 and discount by algorithm.critic.discount"
            )
        if self.objective == "sft":
            raise ValueError(
                f"algorithm.advantage is {self.advantage!r}, which trains a critic, but algorithm.objective 'sft' "
                "looks at no advantage; use another objective, or the advantage 'reinforce_pp'"
            )
        return self

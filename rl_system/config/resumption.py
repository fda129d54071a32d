"""Which keys of a run's configuration may change when it is resumed.

A resumed run is the same run: the same model, learning from the same stream of tasks. What says what is learnt from what
stays; whoever wants it otherwise wants another run, which can start from this one's model. Budgets, speeds, places and
the knobs that people turn while a run goes on may change, from the step on at which it is resumed.

Every key is in `RULES`, with the reason where it is bound.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rl_system.config.run import RunConfig
from rl_system.errors import UserError


class May(enum.Enum):
    CHANGE = "change"
    GROW = "grow"
    NOTHING = "stay as it is"


@dataclass(frozen=True, slots=True)
class Rule:
    """contents: what counts is what the path or name stands for, not how it is spelled."""

    may: May
    reason: str = ""
    contents: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """same_contents: another path or name for the same thing; None where that does not matter or is not known."""

    key: str
    old: Any
    new: Any
    same_contents: bool | None = None

    @property
    def allowed(self) -> bool:
        rule = RULES[self.key]
        if rule.contents and self.same_contents is not None:
            return self.same_contents
        if rule.may is May.GROW:
            return self.new >= self.old
        return rule.may is May.CHANGE

    def refusal(self) -> str:
        rule = RULES[self.key]
        if rule.contents and self.same_contents is False and self.old == self.new:
            return f"{self.key} {self.new!r} holds something else than when the run began: {rule.reason}"
        bound = " and may only grow" if rule.may is May.GROW else ""
        return f"{self.key} is {self.new!r}, but the run has {self.old!r}{bound}: {rule.reason}"


def _bound(reason: str) -> Rule:
    return Rule(May.NOTHING, reason)


def _grows(reason: str) -> Rule:
    return Rule(May.GROW, reason)


FREE = Rule(May.CHANGE)
_TASKS = _bound("the tasks, and the place in their order, are those of this split")
_ORDER = _bound("it decides which task comes next, and the run is somewhere in that order")
_SAMPLED = _bound("groups that wait to be trained on were sampled with it")
_BEGAN = _bound("the run began with the model that it made")

RULES: dict[str, Rule] = {
    "name": _bound("it is whose checkpoints these are"),
    "output": FREE,
    "seed": _ORDER,
    "deterministic": _bound("what is to be repeated has to be so from the first step on"),
    "steps": FREE,
    "model.path": Rule(May.NOTHING, "the run trains that model; its parameters of now are in the checkpoint", contents=True),
    "model.dtype": _bound("parameters and optimizer states are kept in it"),
    "model.max_model_len": FREE,
    "model.chat_template": Rule(May.NOTHING, "it is how tasks are shown to the policy", contents=True),
    "model.tool_format": _bound("it is how the policy learnt to write calls"),
    "model.device": FREE,
    "environment.name": _TASKS,
    "environment.domain": _TASKS,
    "environment.split": _TASKS,
    "environment.shuffle_window": _ORDER,
    "environment.curriculum.enabled": _ORDER,
    "environment.curriculum.uniform_share": FREE,
    "environment.curriculum.memory": FREE,
    "environment.user.kind": _bound("with another kind of user the tasks are others"),
    "environment.user.api_base": FREE,
    "environment.user.model": FREE,
    "environment.user.temperature": FREE,
    "environment.user.max_tokens": FREE,
    "environment.user.max_concurrency": FREE,
    "environment.user.timeout_s": FREE,
    "environment.user.retries": FREE,
    "environment.user.reply_timeout_s": FREE,
    "environment.endpoint.processes": FREE,
    "environment.endpoint.host": FREE,
    "environment.endpoint.model": FREE,
    "environment.endpoint.other_temperature": FREE,
    "environment.endpoint.max_request_mib": FREE,
    "environment.concurrency": FREE,
    "environment.start_timeout_s": FREE,
    "environment.processes": FREE,
    "environment.max_turns": FREE,
    "environment.max_errors": FREE,
    "environment.max_observation_tokens": FREE,
    "environment.step_timeout_s": FREE,
    "environment.episode_timeout_s": FREE,
    "rollout.group_size": FREE,
    "rollout.over_sample": FREE,
    "rollout.groups_per_batch": _grows("groups that wait to be trained on would become too old in smaller batches"),
    "rollout.max_staleness": _grows("groups that wait to be trained on would be too old"),
    "rollout.max_episode_tokens": FREE,
    "rollout.request_timeout_s": FREE,
    "rollout.max_drops_in_a_row": FREE,
    "rollout.stall_timeout_s": FREE,
    "rollout.sampling.temperature": _SAMPLED,
    "rollout.sampling.top_p": _SAMPLED,
    "rollout.sampling.top_k": _SAMPLED,
    "rollout.sampling.max_new_tokens": FREE,
    "rollout.engine.max_num_seqs": FREE,
    "rollout.engine.kv_cache_gib": FREE,
    "rollout.engine.gpu_memory_utilization": FREE,
    "rollout.engine.enforce_eager": FREE,
    "rollout.engine.threads": FREE,
    "rollout.engine.tensor_parallel": FREE,
    "algorithm.advantage": _bound(
        "groups that wait to be trained on have their advantages by it, and it decides whether there is a critic"
    ),
    "algorithm.normalise_batch": FREE,
    "algorithm.drop_zero_signal": FREE,
    "algorithm.credit": FREE,
    "algorithm.turn_discount": FREE,
    "algorithm.critic.discount": FREE,
    "algorithm.critic.gae_lambda": FREE,
    "algorithm.critic.value_clip": FREE,
    "algorithm.critic.learning_rate": FREE,
    "algorithm.objective": FREE,
    "algorithm.clip_low": FREE,
    "algorithm.clip_high": FREE,
    "algorithm.dual_clip": FREE,
    "algorithm.entropy_coefficient": FREE,
    "algorithm.measure_entropy": FREE,
    "algorithm.kl_coefficient": FREE,
    "algorithm.kl_estimator": FREE,
    "algorithm.kl_in": FREE,
    "algorithm.aggregation": FREE,
    "algorithm.constant_length": FREE,
    "algorithm.updates_per_batch": FREE,
    "algorithm.proximal": FREE,
    "algorithm.correction": FREE,
    "algorithm.behaviour_cap": FREE,
    "algorithm.behaviour_floor": FREE,
    "algorithm.sequence_ratio_low": FREE,
    "algorithm.sequence_ratio_high": FREE,
    "algorithm.mask_staleness_above": FREE,
    "algorithm.reward_scale": FREE,
    "algorithm.reward_offset": FREE,
    "algorithm.truncated": FREE,
    "algorithm.endings": FREE,
    "algorithm.malformed_call_penalty": FREE,
    "algorithm.tool_error_penalty": FREE,
    "algorithm.length_penalty": FREE,
    "algorithm.length_penalty_start": FREE,
    "algorithm.length_penalty_full": FREE,
    "executor.method": FREE,
    "executor.block_tokens": FREE,
    "executor.retain_tokens": FREE,
    "executor.head_chunk": FREE,
    "optimizer.learning_rate": FREE,
    "optimizer.beta1": FREE,
    "optimizer.beta2": FREE,
    "optimizer.eps": FREE,
    "optimizer.weight_decay": FREE,
    "optimizer.max_grad_norm": FREE,
    "optimizer.warmup_steps": FREE,
    "optimizer.decay": FREE,
    "optimizer.min_learning_rate_ratio": FREE,
    "optimizer.max_bad_steps": FREE,
    "optimizer.rank_timeout_s": FREE,
    "weights.transport": FREE,
    "weights.chunk_mib": FREE,
    "weights.verify": FREE,
    "weights.timeout_s": FREE,
    "warm_start.enabled": _BEGAN,
    "warm_start.steps": _BEGAN,
    "warm_start.demonstrations_per_step": _BEGAN,
    "warm_start.learning_rate": _BEGAN,
    "warm_start.warmup_steps": _BEGAN,
    "warm_start.stop_probability": _BEGAN,
    "warm_start.seed": _BEGAN,
    "allocation.rollout": FREE,
    "allocation.trainer": FREE,
    "allocation.mode": FREE,
    "allocation.elastic": FREE,
    "allocation.min_rollout": FREE,
    "allocation.min_trainer": FREE,
    "allocation.window_steps": FREE,
    "allocation.dwell_steps": FREE,
    "allocation.horizon_steps": FREE,
    "allocation.margin": FREE,
    "allocation.switch_cost_s": FREE,
    "allocation.handover_timeout_s": FREE,
    "allocation.start_timeout_s": FREE,
    "allocation.join_timeout_s": FREE,
    "allocation.pace": FREE,
    "allocation.trainer_threads": FREE,
    "allocation.tensor_parallel": _bound("the optimizer states in the checkpoint are dealt out by it"),
    "evaluation.split": FREE,
    "evaluation.every": FREE,
    "evaluation.before": FREE,
    "evaluation.after": FREE,
    "evaluation.episodes_per_task": FREE,
    "evaluation.max_tasks": FREE,
    "evaluation.temperature": FREE,
    "checkpoint.every": FREE,
    "checkpoint.keep": FREE,
    "recovery.attempts": FREE,
    "tracking.wandb": FREE,
    "tracking.project": FREE,
    "tracking.dump_trees": FREE,
    "tracking.dump_batches": FREE,
    "tracking.save_episodes": FREE,
    "tracking.progress": FREE,
    "tracking.worker_logs": FREE,
}


def leaf_names(section: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Every key below `section` that holds a value, dotted."""
    names = []
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += leaf_names(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def changes(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    old_contents: Mapping[str, str | None],
    new_contents: Mapping[str, str | None],
) -> list[Change]:
    """What differs between two configurations, each as JSON holds it, in the order of the sections.

    old_contents, new_contents: fingerprints of what keys with `contents` stand for, by key. A key that `old` does not
    have was not there yet when it was written, and did not change.
    """
    found = []
    for key in leaf_names():
        try:
            was, now = _value(old, key), _value(new, key)
        except KeyError:
            continue
        same = None
        if RULES[key].contents and key in old_contents and key in new_contents:
            same = old_contents[key] == new_contents[key]
        if was != now or same is False:
            found.append(Change(key, was, now, same))
    return found


def refuse_bound(found: list[Change], remedy: str) -> None:
    """UserError that names every change that is not allowed, with both values; `remedy` is what to do instead."""
    refused = [change for change in found if not change.allowed]
    if refused:
        raise UserError(f"--resume: {'; '.join(change.refusal() for change in refused)}. {remedy}")


def _value(values: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        if not isinstance(values, Mapping):
            raise KeyError(key)
        values = values[part]
    return values

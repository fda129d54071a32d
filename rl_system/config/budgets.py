"""Budgets that contain each other: whoever waits for something waits longer than it may take.

Owns those rules between seconds, tokens and episodes of a configuration. Where one is broken, something slow but sound would be
taken for something that hangs: an environment abandoned, an episode cut short, a run ended.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_system.config.environment import EnvironmentConfig
    from rl_system.config.run import RunConfig

EPISODE_ATTEMPTS = 3
"""Times that a member of a group is played when its environment or worker breaks, before the group is dropped."""
TURN_TRIES = 2
"""Fewest times that an episode has time for a turn: a slow one is tried again."""
MOST_ROUNDS = 1000
"""Rounds of `environment.concurrency` episodes that one batch may take: more is a slip of the pen."""


def require_time_for_users(environment: EnvironmentConfig) -> None:
    """ValueError where the model that plays the user may need longer than it is waited for."""
    user = environment.user
    if user.kind != "llm":
        return
    places = user.max_concurrency // max(environment.processes, 1)
    episodes = math.ceil(environment.concurrency / max(environment.processes, 1))
    rounds, requests = math.ceil(episodes / places), user.retries + 1
    needed = user.timeout_s * (rounds - 1 + requests)
    if user.reply_timeout_s < needed:
        queue = (
            f", and as long again for each of {rounds - 1} before it, since environment.concurrency {environment.concurrency} "
            f"episodes share environment.user.max_concurrency {user.max_concurrency}"
            if rounds > 1
            else ""
        )
        raise ValueError(
            f"environment.user.reply_timeout_s is {user.reply_timeout_s:g}, but one message of the user may take "
            f"{needed:g} s: {requests} requests (environment.user.retries {user.retries}) of environment.user.timeout_s "
            f"{user.timeout_s:g}{queue}; use at least {needed:g}, or less of what it contains"
        )


def require_time_for_episodes(config: RunConfig) -> None:
    """ValueError naming the first budget of seconds that is shorter than what it contains."""
    environment, rollout, allocation = config.environment, config.rollout, config.allocation
    call = f"environment.step_timeout_s {environment.step_timeout_s:g}"
    if environment.user.kind == "llm":
        call += f" and environment.user.reply_timeout_s {environment.user.reply_timeout_s:g}"
    rounds = math.ceil(rollout.episodes_per_group / environment.concurrency)
    life = EPISODE_ATTEMPTS * (environment.episode_timeout_s + environment.call_timeout_s) * rounds
    in_rounds = (
        f", in {rounds} rounds of environment.concurrency {environment.concurrency} episodes" if rounds > 1 else ""
    )
    rules = [
        (
            "environment.episode_timeout_s", environment.episode_timeout_s, environment.call_timeout_s,
            f"one step of an environment may take {{}} s ({call})",
        ),
        (
            "environment.episode_timeout_s", environment.episode_timeout_s,
            environment.start_timeout_s if environment.processes else 0.0,
            "an episode may wait {} s for a process that is started anew (environment.start_timeout_s)",
        ),
        (
            "environment.episode_timeout_s", environment.episode_timeout_s, TURN_TRIES * rollout.request_timeout_s,
            f"a turn that is tried again may take {{}} s ({TURN_TRIES} times rollout.request_timeout_s "
            f"{rollout.request_timeout_s:g})",
        ),
        (
            "rollout.request_timeout_s", rollout.request_timeout_s, config.weights.timeout_s,
            "a turn may wait {} s for new weights (weights.timeout_s)",
        ),
        (
            "rollout.stall_timeout_s", rollout.stall_timeout_s, life,
            f"one group may take {{}} s to end or be dropped ({EPISODE_ATTEMPTS} attempts at an episode of "
            f"environment.episode_timeout_s {environment.episode_timeout_s:g} and at its score, {call}{in_rounds})",
        ),
        (
            "allocation.start_timeout_s", allocation.start_timeout_s, allocation.join_timeout_s,
            "trainers that start may wait {} s for each other (allocation.join_timeout_s)",
        ),
    ]  # fmt: skip
    for name, value, least, why in rules:
        if value < least:
            raise ValueError(
                f"{name} is {value:g}, but {why.format(f'{least:g}')}; use at least {least:g}, or less of what it contains"
            )


def require_room_for_tokens(config: RunConfig) -> None:
    """ValueError where a budget of tokens is larger than what contains it, and would never be reached."""
    rollout, model = config.rollout, config.model
    if rollout.sampling.max_new_tokens >= model.max_model_len:
        raise ValueError(
            f"rollout.sampling.max_new_tokens is {rollout.sampling.max_new_tokens}, which leaves no room for a "
            f"prompt in model.max_model_len {model.max_model_len}; use a smaller one"
        )
    if rollout.sampling.max_new_tokens > rollout.max_episode_tokens:
        raise ValueError(
            f"rollout.sampling.max_new_tokens is {rollout.sampling.max_new_tokens}, but no turn gets there: "
            f"rollout.max_episode_tokens {rollout.max_episode_tokens} is the budget of all turns of an episode; use at most that"
        )
    if config.environment.max_observation_tokens > model.max_model_len:
        raise ValueError(
            f"model.max_model_len is {model.max_model_len}, less than the environment.max_observation_tokens "
            f"{config.environment.max_observation_tokens} that one tool result may have, beside the prompt; use at least as "
            "many, or shorter observations"
        )


def require_sizes_that_can_be_meant(config: RunConfig) -> None:
    """ValueError where a batch would take more rounds of episodes than anybody waits for."""
    rollout, concurrency = config.rollout, config.environment.concurrency
    episodes = rollout.episodes_per_group * rollout.groups_per_batch
    if episodes > MOST_ROUNDS * concurrency:
        raise ValueError(
            f"rollout.group_size is {rollout.group_size} and rollout.groups_per_batch {rollout.groups_per_batch}: {episodes} "
            f"episodes a policy update, {math.ceil(episodes / concurrency)} rounds of environment.concurrency {concurrency}; "
            f"at most {MOST_ROUNDS} rounds can be meant: use smaller groups, fewer of them, or more concurrency"
        )

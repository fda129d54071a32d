"""Budgets that contain each other: whoever waits for something waits longer than it may take.

Owns those rules between seconds and episodes of a configuration without which work is lost: something slow but sound would be
taken for something that hangs, and an episode failed, a group of trainers broken or a run ended for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_system.config.allocation import AllocationConfig
    from rl_system.config.environment import EnvironmentConfig
    from rl_system.config.run import RunConfig

EPISODE_ATTEMPTS = 3
"""Times that a member of a group is played when its environment or worker breaks, before the group is dropped."""
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


def require_time_for_groups(config: RunConfig) -> None:
    """ValueError where the run would end while a group is still played as its own budgets allow."""
    environment, stall = config.environment, config.rollout.stall_timeout_s
    rounds = math.ceil(config.rollout.episodes_per_group / environment.concurrency)
    if rounds > EPISODE_ATTEMPTS:
        why = f"{rounds} rounds of environment.concurrency {environment.concurrency} episodes"
    else:
        why = f"{EPISODE_ATTEMPTS} attempts at an episode"
    needed = max(rounds, EPISODE_ATTEMPTS) * (environment.episode_timeout_s + environment.step_timeout_s)
    if stall < needed:
        raise ValueError(
            f"rollout.stall_timeout_s is {stall:g}, but one group may take {needed:g} s to end or be dropped: {why} of "
            f"environment.episode_timeout_s {environment.episode_timeout_s:g}, and environment.step_timeout_s "
            f"{environment.step_timeout_s:g} for its score; use at least {needed:g}, or less of what it contains"
        )


def require_time_for_trainers(allocation: AllocationConfig) -> None:
    """ValueError where trainers would be given up while they still wait for each other, and could form no group any more."""
    if allocation.start_timeout_s < allocation.join_timeout_s:
        raise ValueError(
            f"allocation.start_timeout_s is {allocation.start_timeout_s:g}, but trainers that start may wait "
            f"allocation.join_timeout_s {allocation.join_timeout_s:g} for each other; use at least as much"
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

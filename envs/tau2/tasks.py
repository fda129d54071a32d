"""Which tasks there are, and an environment for one of them."""

from __future__ import annotations

from envs.protocol import Environment
from envs.tau2.domains import DOMAINS, Domain, playable_alone
from envs.tau2.environment import Tau2Environment
from envs.tau2.model_user import ModelUser
from envs.tau2.upstream import RewardType, UpstreamTask
from envs.tau2.users import ScriptedUser, User
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.errors import UserError
from rl_system.records import Task


def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
    """Tasks of the split that can be played and judged here, in upstream's order."""
    domain = _domain(config)
    ids = domain.splits().get(split)
    if ids is None:
        raise UserError(
            f"split {split!r} does not exist in domain {domain.name!r} of tau2; use one of {', '.join(domain.splits())}"
        )
    return [
        Task("tau2", domain.name, task_id, split) for task_id in ids if _playable(domain.task(task_id), config.user)
    ]


def make_environment(config: EnvironmentConfig, task: Task) -> Environment:
    domain = _domain(config)
    try:
        upstream = domain.task(task.task_id)
    except KeyError:
        raise UserError(f"task {task.task_id!r} does not exist in domain {domain.name!r} of tau2") from None
    return Tau2Environment(domain, upstream, _user(config))


def _domain(config: EnvironmentConfig) -> Domain:
    domain = DOMAINS.get(config.domain)
    if domain is None:
        raise UserError(f"environment.domain is {config.domain!r}; tau2 has {', '.join(DOMAINS)}")
    if config.user.kind == "solo" and not domain.solo:
        alone = ", ".join(name for name, each in DOMAINS.items() if each.solo)
        raise UserError(
            f"environment.user.kind is 'solo', but domain {domain.name!r} of tau2 needs a user; use scripted or llm, "
            f"or one of the domains that can be played alone: {alone}"
        )
    return domain


def _playable(task: UpstreamTask, user: UserConfig) -> bool:
    judged_by_model = task.evaluation_criteria and RewardType.NL_ASSERTION in task.evaluation_criteria.reward_basis
    return not judged_by_model and (user.kind != "solo" or playable_alone(task))


def _user(config: EnvironmentConfig) -> User | None:
    match config.user.kind:
        case "solo":
            return None
        case "scripted":
            return ScriptedUser()
        case "llm":
            return ModelUser(config)

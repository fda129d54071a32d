"""What an evaluation plays: the file and overrides decide, options where they are given, and no two may contradict each other.

Every option stands for a key of the configuration. So a policy is evaluated as a run of the same configuration would
evaluate it, and what that run trains on is not played unless it is asked for.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import yaml

from rl_system.config.environment import TAU2
from rl_system.config.load import build_config, parse_overrides, read_yaml
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.machine.resources import usable_processors
from rl_system.strict_json import to_json

SCRIPTED = ("gold", "noop")
"""Policies that need no model."""
KEYS = {
    "agent": "environment.name",
    "domain": "environment.domain",
    "split": "evaluation.split",
    "user": "environment.user.kind",
    "trials": "evaluation.episodes_per_task",
    "max_tasks": "evaluation.max_tasks",
    "temperature": "evaluation.temperature",
}
"""The key that an option of `launch.evaluate` stands for."""
SPLITS = ("evaluation.split", "environment.split")
"""Both say what is played: nothing is trained on here."""
LONG_PROMPTS = {"max_model_len": 16384}
LONG_DIALOGUES = {"max_episode_tokens": 8192, "sampling": {"max_new_tokens": 1024}}
"""What tau2's domains with real policies need, where no file says what to use; mock's prompts are short."""
LONG_TURNS = 60
NO_GROUPS = {"rollout.over_sample": 0, "rollout.stall_timeout_s": 1e9}
"""Nothing is trained on: no group is played, none is waited for, and no budget has to contain one."""


def evaluation_config(options: argparse.Namespace, overrides: list[str]) -> RunConfig:
    """The run configuration that the policy is evaluated under; its `environment.split` is the split that is played.

    `name` is left to whoever makes the directory, unless an override gives one. Raises UserError.
    """
    given = parse_overrides(overrides)
    wanted = {KEYS[name]: getattr(options, name) for name in KEYS if getattr(options, name) is not None}
    if options.policy not in (None, *SCRIPTED):
        wanted["model.path"] = options.policy
    for key, value in wanted.items():
        option = next((f"--{name.replace('_', '-')}" for name in KEYS if KEYS[name] == key), "--policy")
        for other in SPLITS if key in SPLITS else (key,):
            if other in given and not _same(given[other], value):
                raise UserError(f"{option} is {value!r}, but --{other} is {given[other]!r}; give one of them")
    splits = {str(given[key]) for key in SPLITS if key in given}
    if len(splits) > 1:
        raise UserError(f"--{SPLITS[0]} is {given[SPLITS[0]]!r}, but --{SPLITS[1]} is {given[SPLITS[1]]!r}; give one of them")
    if splits:
        wanted.setdefault(SPLITS[0], splits.pop())
    values = read_yaml(options.config) if options.config else _without_a_file(wanted | given)
    values.setdefault("name", "evaluation")
    words = [word for key, value in (wanted | NO_GROUPS).items() for word in (f"--{key}", to_json(value))]
    config = build_config(values, [*overrides, *words], source=str(options.config or "launch.evaluate"))
    split = config.evaluation.split
    return config.model_copy(update={"environment": config.environment.model_copy(update={"split": split})})


def _without_a_file(wanted: dict[str, Any]) -> dict[str, Any]:
    """What is usual for the environment."""
    values: dict[str, Any] = {"environment": {"processes": min(usable_processors(), 8)}}
    if wanted.get("environment.name", TAU2) == TAU2 and wanted.get("environment.domain", "mock") != "mock":
        values |= {"model": dict(LONG_PROMPTS), "rollout": LONG_DIALOGUES | {}}
        values["environment"]["max_turns"] = LONG_TURNS
    return values


def _same(one: Any, other: Any) -> bool:
    """Whether both are read as the same value, in whatever spelling."""
    return str(one) == str(other) or yaml.safe_load(str(one)) == yaml.safe_load(str(other))


def policy_label(policy: str) -> str:
    """A short name that tells policies apart: `gold`, `tau2_mock_cpu-step_14`, the last part of another path."""
    checkpoint = checkpoint_of(policy)
    return "-".join(map(str, checkpoint)) if checkpoint else Path(policy).name


def checkpoint_of(policy: str) -> tuple[str, str] | None:
    """Run and step of a model that lies in a run's checkpoints, as `("tau2_mock_cpu", "step_14")`; None for others."""
    *_, run, checkpoints, step, model = ("", "", "", "", *Path(policy).absolute().parts)
    is_checkpoint = (checkpoints, model) == ("checkpoints", "model") and re.fullmatch(r"step_\d+", step)
    return (run, step) if is_checkpoint else None

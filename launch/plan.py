"""`python -m launch.plan --profile configs/profiles/X.yaml --accelerators N`: the best split, for each way to train.

With `--run runs/NAME` instead of a profile it plans from what that run measured; `--write X.yaml` keeps that as a profile.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import yaml

from launch.command import Parser, place, run_command, seed, whole
from rl_system.allocation.measured import measured_profile
from rl_system.allocation.planner import WARM_UP_STEPS, Plan, plan
from rl_system.allocation.profile import Profile, load_profile
from rl_system.config.load import load_config
from rl_system.errors import UserError
from rl_system.strict_json import to_json
from rl_system.tracking.history import read_history
from rl_system.tracking.json_lines import read_lines

MOST_ACCELERATORS, MOST_STEPS = 10_000, 10_000
"""Of a simulation that ends while somebody waits for it."""


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.plan", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--profile", type=place(), help="YAML file, see configs/profiles")
    source.add_argument("--run", type=place(), help="directory of a run, whose measurements are the profile")
    parser.add_argument("--write", type=place(), metavar="X.yaml", help="also write the profile there")
    parser.add_argument(
        "--accelerators", type=whole(at_least=1, at_most=MOST_ACCELERATORS), help="cluster size (default: the profile's)"
    )
    parser.add_argument(
        "--steps", type=whole(at_least=WARM_UP_STEPS + 1, at_most=MOST_STEPS), default=60,
        help="simulated policy updates of each split",
    )
    parser.add_argument("--seed", type=seed(), default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return run_command(lambda: show_plans(parser.parse_args(arguments)))


def show_plans(options: argparse.Namespace) -> None:
    profile = load_profile(options.profile) if options.profile else profile_of_run(options.run)
    if options.write:
        write(profile, options.write)
    accelerators = options.accelerators if options.accelerators is not None else profile.accelerators
    plans = plan(profile, accelerators, steps=options.steps, seed=options.seed)
    print("\n".join(to_json(as_record(each)) for each in plans) if options.json else as_text(profile.name, plans))


def write(profile: Profile, path: Path) -> None:
    """Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(as_values(profile), sort_keys=False))
    except OSError as error:
        raise UserError(f"--write {path} cannot be written: {error.strerror}") from None


def profile_of_run(directory: Path) -> Profile:
    """Raises UserError where there is no run, or too short a one."""
    history = read_history(directory)
    sampled = [
        float(sum(len(turn["response_ids"]) for turn in episode["turns"]))
        for path in sorted((directory / "episodes").glob("group_*"))
        for episode in read_lines(path)
    ]
    return measured_profile(load_config(directory / "config.yaml", []), history.steps, history.events, sampled)


def as_values(profile: Profile) -> dict[str, object]:
    """For YAML, with four digits: no run measures more."""

    def rounded(value: object) -> object:
        if isinstance(value, dict):
            return {name: rounded(each) for name, each in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    return rounded(profile.model_dump(mode="json", exclude_unset=True))


def as_record(one: Plan) -> dict[str, object]:
    return {name: _rounded(value) for name, value in dataclasses.asdict(one).items()}


def _rounded(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def as_text(name: str, plans: list[Plan]) -> str:
    lines = [f"{name}, {plans[0].rollout + plans[0].trainer} accelerators"]
    for each in plans:
        lines.append(
            f"  {each.method:<6} best split {each.rollout} rollout + {each.trainer} training: "
            f"{each.groups_per_s:.4g} groups/s, {each.step_s:.4g} s a step, limited by {each.limit.value}; "
            f"auto ends at {each.auto_rollout} + {each.auto_trainer} with {each.auto_groups_per_s:.4g} groups/s"
        )
    rates = {each.method: each.groups_per_s for each in plans}
    if "tree" in rates and "dense" in rates:
        lines.append(f"  tree against dense, each at its best split: {rates['tree'] / rates['dense']:.2f} times")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

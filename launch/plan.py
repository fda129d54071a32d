"""`python -m launch.plan --profile configs/profiles/X.yaml --accelerators N`: the best split, for each way to train."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from rl_system.allocation.planner import Plan, plan
from rl_system.allocation.profile import load_profile
from rl_system.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.plan", description=__doc__)
    parser.add_argument("--profile", type=Path, required=True, help="YAML file, see configs/profiles")
    parser.add_argument("--accelerators", type=int, help="cluster size (default: the profile's)")
    parser.add_argument("--steps", type=int, default=60, help="simulated policy updates of each split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        profile = load_profile(options.profile)
        accelerators = options.accelerators if options.accelerators is not None else profile.accelerators
        plans = plan(profile, accelerators, steps=options.steps, seed=options.seed)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(json.dumps(as_record(each)) for each in plans) if options.json else as_text(profile.name, plans))
    return 0


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

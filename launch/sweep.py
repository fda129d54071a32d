"""Run variants of a configuration, one after the other and over several seeds, and print them as a table.

    python -m launch.sweep --config configs/tau2_mock_cpu.yaml --variants configs/sweeps/algorithms.yaml --seeds 0,1

A file of variants maps names to overrides by dotted key. Every run is an ordinary one, named VARIANT-SEED, of its own
process; further --section.key value go to all of them. Runs that are finished are not run again and one that was begun goes
on, so a sweep that was stopped or killed is gone on with by the same command.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from launch.bench.support.options import names
from launch.command import STOPPED, Parser, place, run_command, wholes
from launch.stopping import run_program, stop_when_terminated
from rl_system.config.explain import shown
from rl_system.config.load import load_config, read_yaml
from rl_system.config.resumption import changes
from rl_system.config.run import RunConfig
from rl_system.config.written import as_word
from rl_system.errors import UserError
from rl_system.tracking.history import read_history
from rl_system.tracking.sweep import Variant, finished, table

COMPARED = ("seed", "model", "environment", "rollout", "algorithm", "optimizer", "warm_start")
"""Sections that decide what a run learns; what it is run on, and how often it is saved, may differ."""


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=place(), required=True, help="what the variants are variants of")
    parser.add_argument("--variants", type=place(), required=True, help="YAML: {name: {section.key: value, …}, …}")
    parser.add_argument("--seeds", type=wholes(at_least=0), default=[0], help="whole numbers separated by commas")
    parser.add_argument("--only", type=names, help="names of variants separated by commas; default: all")
    parser.add_argument("--table", action="store_true", help="run nothing, print the finished ones")
    stop_when_terminated()
    return run_command(lambda: sweep(*parser.parse_known_args(arguments)))


def sweep(options: argparse.Namespace, overrides: list[str]) -> int:
    variants = read_variants(options.variants)
    for name in options.only or ():
        if name not in variants:
            raise UserError(f"--only names {name!r}, which {options.variants} lacks; it has {', '.join(variants)}")
    chosen = {name: keys for name, keys in variants.items() if not options.only or name in options.only}
    # Every mistake shows before the first run starts. By seed first: an early stop leaves a table of whole seeds.
    runs = {
        (seed, name): [*overrides, *flags(keys), "--seed", str(seed), "--name", f"{name}-{seed}"]
        for seed in options.seeds
        for name, keys in chosen.items()
    }
    configs = {run: load_config(options.config, arguments) for run, arguments in runs.items()}
    for config in configs.values():
        require_same(config)
    for run, arguments in runs.items():
        if options.table or _finished(configs[run]):
            continue
        command = [sys.executable, "-m", "launch.train", "--config", str(options.config), "--resume", *arguments]
        code = run_program(command)
        if code:
            print(f"the sweep stops: run {configs[run].directory} ended with exit code {code}", file=sys.stderr)
            return code if code == STOPPED else 1
    found = []
    for name in chosen:
        where = [configs[seed, name] for seed in options.seeds]
        if done := [read_history(each.directory) for each in where if _finished(each)]:
            found.append(Variant(name, done))
    if not found:
        raise UserError(f"no run of {options.variants} is finished in {next(iter(configs.values())).output}")
    print(table(found))
    return 0


def _finished(config: RunConfig) -> bool:
    return finished(config.directory, config.steps)


def require_same(config: RunConfig) -> None:
    """UserError where a run that is finished was another than the sweep's: the table would compare what it does not say."""
    if not _finished(config):
        return  # --resume will tell
    before, now = read_history(config.directory).config, config.model_dump(mode="json")
    different = [change for change in changes(before, now, {}, {}) if change.key.partition(".")[0] in COMPARED]
    if different:
        what = "; ".join(f"{change.key} was {change.old!r}, the sweep has {change.new!r}" for change in different)
        raise UserError(f"{config.directory} is finished with another configuration ({what}); move it away or choose --output")


def read_variants(path: Path) -> dict[str, dict[str, Any]]:
    variants = read_yaml(path)
    for name, keys in variants.items():
        if not isinstance(keys, dict):
            raise UserError(
                f"{path}: variant {name} is {shown(keys)}; expected overrides such as {{optimizer.learning_rate: 1.0e-5}}"
            )
    return variants


def flags(keys: dict[str, Any]) -> list[str]:
    """`{"a.b": 1}` as `["--a.b", "1"]`."""
    return [word for key, value in keys.items() for word in (f"--{key}", as_word(value))]


if __name__ == "__main__":
    sys.exit(main())

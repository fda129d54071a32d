"""Train: what `ray job submit` starts.

    python -m launch.train --config configs/tau2_mock_cpu.yaml [--section.key value …] [--dry-run] [--resume]

Runs on the Ray cluster of RAY_ADDRESS (set inside a Ray job), or on a private one that it starts and stops. Ends cleanly
on Ctrl-C, `ray job stop` and SIGTERM: actors are closed, metrics up to then are on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import yaml

from launch.command import STOPPED, Parser, place, run_command
from launch.course import Course
from launch.failure import epitaph, reason_of
from launch.stopping import stop_when_terminated
from rl_system.allocation.resumed import start_split
from rl_system.config.load import load_config
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.output_place import made_for, tentative_contents
from rl_system.preflight import Preflight, preflight
from rl_system.recovery import Attempts, PartLost
from rl_system.run_directory import announce, make_ready
from rl_system.run_lock import only_process_in
from rl_system.shared_files import SharedFiles
from rl_system.start import find_start
from rl_system.this_machine import all_here
from rl_system.tracking.history import is_run
from rl_system.tracking.report import write_report
from rl_system.tracking.tracker import Tracker, settle
from rl_system.training.checkpoint_directory import MODEL
from rl_system.training.prepared import model_directory


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.train", description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=place(), required=True, help="a file of configs/")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and the placement")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the run")
    return run_command(lambda: launch(*parser.parse_known_args(arguments)))


def launch(options: argparse.Namespace, overrides: list[str]) -> int:
    stop_when_terminated()  # whoever stops it, what was begun is taken back
    config = load_config(options.config, overrides)
    checked = prepare(config, resume=options.resume, dry_run=options.dry_run)
    if options.dry_run:
        show(config, checked)
        return 0
    for warning in checked.warnings:
        print(f"warning: {warning}")
    with made_for(config.directory), only_process_in(config.directory):
        if checked.start.complete:
            return leave_complete(config)
        return run(config, checked)


def leave_complete(config: RunConfig) -> int:
    """What is left to do for a run that has done all its steps: what the end of its last life may have missed."""
    settle(config)
    print(
        f"complete: {config.directory} has done all {config.steps} steps; more --steps go on, report "
        f"{write_report(config.directory)}"
    )
    return 0


def prepare(config: RunConfig, *, resume: bool, dry_run: bool) -> Preflight:
    """Check everything that can be checked now. A real run also makes the model that `warm_start.enabled` asks for."""
    from actors.engine.cache_size import require_cache

    checked = preflight(config, resume=resume, dry_run=dry_run)
    if checked.model is not None:
        require_cache(checked.model.directory, config)
    if dry_run or checked.start.complete:
        return checked
    if checked.resumed is None and config.warm_start.enabled:
        checked = preflight(config, resume=resume, begins_with=began_with(config))
    elif checked.resumed is not None and not (checked.resumed.started_from or Path()).is_dir():
        checked.resumed.started_from = began_with(config)  # it was moved, or this is another machine
    return checked


def began_with(config: RunConfig) -> Path:
    """Directory of the model that the run of `config` begins with, made where it is not there."""
    if not config.warm_start.enabled:
        return model_directory(config.model.path)
    from rl_system.training.warm_start import ensure_warm_start

    return ensure_warm_start(config)


def show(config: RunConfig, checked: Preflight) -> None:
    """The dry run's answer: YAML that `--config` takes, and what was found as its comments."""
    from actors.cluster import accelerator_resource, describe_placement

    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), end="")
    found = checked.start.describe()
    if checked.start.complete:
        print(*(f"# {line}" for line in found), sep="\n")
        return
    found.append(f"tasks: {checked.train_tasks} to train on, {checked.evaluation_tasks} to evaluate on")
    if (model := checked.model) is not None:
        found.append(f"model directory: {model.directory}")
        if model.prompt_tokens:
            found.append(f"first prompt: up to {model.prompt_tokens} tokens")
    found += checked.notes
    found += describe_placement(config).splitlines()
    resource = accelerator_resource(config)
    unchecked = [f"whether the Ray cluster has {config.allocation.accelerators} {resource}", *checked.unchecked]
    found += [f"not checked here: {what}" for what in unchecked]
    found += [f"warning: {what}" for what in checked.warnings]
    print(*(f"# {line}" for line in found), sep="\n")


def run(config: RunConfig, checked: Preflight) -> int:
    """The run from no cluster to its report. Returns the exit code. A run that did not begin leaves nothing."""
    from actors.connection import joined

    course = Course(checked.start.again, Attempts(config.recovery.attempts))
    try:
        with tentative_contents(config.directory, lambda: course.begun), joined(config):
            stopped = asyncio.run(course.run(train(config, checked, course)))
    except Exception as error:
        if not (course.begun and is_run(config.directory)):
            raise
        print(f"failed: {config.directory}, report {write_report(config.directory)}")
        if isinstance(getattr(error, "cause", error), UserError):
            raise
        print(f"error: {epitaph(config, error)}", file=sys.stderr)
        return 1
    if not (course.begun and is_run(config.directory)):
        raise KeyboardInterrupt  # there is nothing to report on
    print(f"{'stopped' if stopped else 'done'}: {config.directory}, report {write_report(config.directory)}")
    return STOPPED if stopped else 0


async def train(config: RunConfig, checked: Preflight, course: Course) -> None:
    """Train until the run is done, in as many lives as it takes: one ends with a part of the run that was lost, and the
    next goes on from the newest checkpoint.
    """
    while not checked.start.complete:
        course.begin_life()
        try:
            return await live(config, checked, course)
        except PartLost:
            if not course.losses:
                raise
        checked = gone_on(config, checked)


async def live(config: RunConfig, checked: Preflight, course: Course) -> None:
    """Train on accelerators of the cluster until the run is done. Leaves no actor behind. PartLost where it has to be
    started anew.
    """
    from actors.cluster import Accelerators
    from actors.engine.user_server import served_user
    from actors.node_memory import room_of_a_newcomer, rooms
    from actors.nodes import Newcomers, clear_memory, require_fit
    from actors.run import Run

    start, model = checked.start, checked.model
    split, _ = start_split(config.allocation, start.state.controller if start.state else None)
    accelerators = await Accelerators.reserve(config, split)
    await accelerators.look()
    nodes = set(accelerators.placed.values())
    shared = SharedFiles.mark(config.directory, model.directory, config.model.chat_template)
    # Where all is on this machine, preflight has looked already.
    await require_fit(nodes, shared, {} if all_here(config) else rooms(model.needs, accelerators))
    accelerators.newcomers = Newcomers(shared, room_of_a_newcomer(model.needs))
    aside = make_ready(config, start)
    # Actors run in other folders, perhaps on other nodes: from here on every path is absolute.
    config = config.model_copy(update={"output": config.output.absolute()})
    configured = {"config": config.model_dump(mode="json"), "contents": dict(checked.contents)}
    async with served_user(config) as environment:
        config = config.model_copy(update={"environment": environment})
        with Tracker(config, resume_step=start.step if start.again else None, started=course.started) as tracker:
            course.started = tracker.started
            announce(tracker, start, aside, checked.contents)
            while course.losses:  # now, because what was noted before the start of this life is taken back
                tracker.event("part_lost", **course.losses.pop(0))
            run = Run(config, model.directory, model.vocabulary, accelerators, tracker, start.state, configured)
            try:
                await run.supervise()
            except Exception as error:
                course.begun = course.begun or run.begun
                if not course.goes_on_after(error, run.step):
                    tracker.event("failed", reason=reason_of(error))
                raise
            finally:
                course.begun, course.closing = course.begun or run.begun, True
                await run.close()
                await clear_memory(nodes | set(accelerators.placed.values()), config.directory)


def gone_on(config: RunConfig, checked: Preflight) -> Preflight:
    """`checked` for the next life of a run that lost a part."""
    start = find_start(config, resume=True, contents=checked.contents)
    if start.state is None:
        return replace(checked, start=start)
    if not (start.state.started_from or Path()).is_dir():
        start.state.started_from = began_with(config)
    return replace(checked, start=start, model=replace(checked.model, directory=start.state.path / MODEL))


if __name__ == "__main__":
    sys.exit(main())

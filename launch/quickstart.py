"""From an installed environment to a finished run: model, warm start, local Ray, job, report. Stops what it started.

Called by `launch/quickstart.sh`, which sets up the environment first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from launch.command import Parser, place, port, run_command
from launch.local_ray import LocalRay
from launch.stopping import run_program, stop_when_terminated
from rl_system.config.load import load_config
from rl_system.tracking.sweep import finished

JOB_STOP_TIMEOUT_S = 90.0
DEFAULT_CONFIG = Path(__file__).parent.parent / "configs" / "tau2_mock_cpu.yaml"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="bash launch/quickstart.sh",
        description="Train a small model on τ²-bench on this machine; further --section.key value go to the run.",
    )
    parser.add_argument("--config", type=place(), default=DEFAULT_CONFIG)
    parser.add_argument("--dashboard-port", type=port(), help="of the local Ray cluster (default: a free one)")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped or lost; always done")
    stop_when_terminated()
    return run_command(lambda: quickstart(*parser.parse_known_args(arguments)))


def quickstart(options: argparse.Namespace, overrides: list[str]) -> int:
    config = load_config(options.config, overrides)
    # Always to be gone on with: whoever stopped or lost the quickstart repeats the command.
    settings = ["--config", str(options.config.absolute()), *overrides]
    run = [sys.executable, "-m", "launch.train", "--resume", *settings]
    say(f"run {config.name}, {config.steps} policy updates, into {config.directory}")
    step("model", [sys.executable, "-m", "launch.prepare_model", config.model.path], unless=Path(config.model.path).is_dir())
    step("configuration", [*run, "--dry-run"], quiet=True)
    if finished(config.directory, config.steps):
        return run_program(run)  # says so, without a cluster
    step("warm start", [sys.executable, "-m", "launch.warm_start", *settings], unless=not config.warm_start.enabled)
    say("local Ray")
    with LocalRay(config.allocation.accelerators, options.dashboard_port) as cluster:
        say(f"submitting the run; dashboard {cluster.dashboard} (the token is in RAY_AUTH_TOKEN of the job)")
        return submit(cluster, run)


def submit(cluster: LocalRay, run: list[str]) -> int:
    """Submit the run, follow its log to the end, and stop it in order if this process is stopped."""
    job = f"quickstart-{os.getpid()}-{int(time.time())}"
    client = cluster.client_environment
    columns = shutil.get_terminal_size().columns
    following = subprocess.Popen(
        [cluster.ray, "job", "submit", "--submission-id", job, "--log-style=record", "--", "env",
         "--chdir", os.getcwd(), f"COLUMNS={columns}", *run],
        env=client, start_new_session=True,
    )  # fmt: skip
    try:
        return following.wait()
    except KeyboardInterrupt:
        subprocess.run([cluster.ray, "job", "stop", job], env=client, timeout=JOB_STOP_TIMEOUT_S, check=False)
        raise
    finally:
        if following.poll() is None:
            following.terminate()
            following.wait()


def step(name: str, command: list[str], *, unless: bool = False, quiet: bool = False) -> None:
    """Run one command of the way; its failure ends this one with the same exit code."""
    if unless:
        return
    say(name)
    # Unbuffered: progress is seen as it happens, also through a pipe.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    code = run_program(command, env=environment, stdout=subprocess.DEVNULL if quiet else None)
    if code:
        sys.exit(code)


def say(text: str) -> None:
    print(f"quickstart: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

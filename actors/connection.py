"""Joining a Ray cluster, or having one of its own.

A run joins the cluster of RAY_ADDRESS, as every Ray job does. Without it the run has a private one, whatever else runs on the
machine: on a loopback address, with a token that nobody else knows and a temporary directory of its own. Invariant: when
`joined` or `private_cluster` is left, however, this process is part of no cluster, and no process and no file of a private
one is there any more, but its logs where the run broke.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._raylet import AuthenticationTokenLoader, Config  # both read the environment once, without a public way to say when

from actors import join_trial
from actors.cluster import SLOT
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.machine.object_store import object_store_bytes
from rl_system.machine.resources import Resources

LOCAL = "local"
"""What Ray calls a private cluster where it wants an address."""
PRIVATE_ADDRESS = "127.0.0.2"
"""Ray replaces 127.0.0.1 and localhost by the machine's outer address, but no other: a private cluster outlives that one."""
STOP_TIMEOUT_S = 20.0
WORDS = 500
"""Characters of what Ray says about a failure: its own messages are pages with tracebacks in them."""
HOST_AND_PORT = re.compile(r"(?:[^\s:/]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
DRIVERS_CALLS = ("RAY_JOB_CONFIG_JSON_ENV_VAR",)
"""Variables by which the processes of a Ray job know that they are its driver."""


@contextlib.contextmanager
def joined(config: RunConfig) -> Iterator[None]:
    """Part of the cluster of RAY_ADDRESS, or of a private one with as many accelerator slots as the run needs.

    Raises UserError, soon, where the cluster cannot be joined.
    """
    output = {"log_to_driver": config.tracking.worker_logs}
    address = os.environ.get("RAY_ADDRESS", "").strip()
    if address in ("", LOCAL):
        slots = {SLOT: config.allocation.accelerators} if config.model.device == "cpu" else None
        with private_cluster(resources=slots, **output):
            yield
        return
    require_joinable(address)
    ray.init(address=address, logging_level=logging.WARNING, **output)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def private_cluster(**settings: Any) -> Iterator[None]:
    """A cluster of this process alone; settings: for `ray.init`. Raises UserError where it does not come up."""
    directory = Path(tempfile.mkdtemp(prefix="rl-ray-", dir="/tmp"))  # sockets need a short path
    with _environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_ADDRESS": None}):
        before, own = set(_below()), []
        try:
            try:
                _start(directory, settings)
            finally:
                own = set(_below()) - before
            yield
        except Exception as error:
            if not isinstance(error, UserError):
                logs = directory.with_name(f"{directory.name}-logs")
                with contextlib.suppress(OSError):
                    shutil.copytree(directory / "session_latest" / "logs", logs)
                    error.add_note(f"What the processes of Ray wrote is in {logs}")
            raise
        finally:
            with _undisturbed():
                cluster = [each for process in own for each in (process, *_below(process))]
                ray.shutdown()
                _end(cluster)
                shutil.rmtree(directory, ignore_errors=True)


def _start(directory: Path, settings: dict[str, Any]) -> None:
    # Ray would run actors at niceness 15, where any other program on the machine starves them.
    system = {"worker_niceness": 0} | settings.pop("_system_config", {})
    try:
        ray.init(
            address=LOCAL,
            include_dashboard=False,
            logging_level=logging.WARNING,
            object_store_memory=object_store_bytes(Resources.look()),
            _node_ip_address=PRIVATE_ADDRESS,
            _temp_dir=str(directory),
            _system_config=system,
            **settings,
        )
    except (RuntimeError, ConnectionError, OSError, ValueError) as error:
        raise UserError(f"a Ray cluster for this run did not start on this machine: {_short(str(error)) or type(error).__name__}") from error


@contextlib.contextmanager
def _environment(variables: dict[str, str | None]) -> Iterator[None]:
    """Variables of this process and its children, for as long as the block takes; None: not set."""
    before = {name: os.environ.get(name) for name in variables}

    def assign(values: dict[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()

    assign(variables)
    try:
        yield
    finally:
        assign(before)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """What has to be cleaned up is, also where somebody who does not want to wait asks to stop again. It takes seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _below(process: psutil.Process | None = None) -> list[psutil.Process]:
    """All that `process`, by default this one, has started, directly or not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return (process or psutil.Process()).children(recursive=True)
    return []


def _end(processes: list[psutil.Process]) -> None:
    """What a cluster that came up halfway, or does not go, would leave running."""
    _, left = psutil.wait_procs(processes, STOP_TIMEOUT_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, STOP_TIMEOUT_S)


def require_joinable(address: str) -> None:
    """Raises UserError unless this process can join the cluster at `address`, which is tried in another process."""
    if (wrong := wrong_form(address)) is not None:
        raise UserError(f"RAY_ADDRESS is {address!r}, {wrong}")
    environment = {name: value for name, value in os.environ.items() if name not in DRIVERS_CALLS}
    # Ray's own output is pages; and a process that was ended by force cannot tell what it said.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        trial = subprocess.Popen(
            [sys.executable, "-P", join_trial.__file__, address],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, text=True,
        )  # fmt: skip
        try:
            answer, _ = trial.communicate()
        finally:
            trial.kill()
            trial.wait()
        if trial.returncode == 0 and not answer:
            return
        output.seek(0)
        said = output.read()
    raise UserError(f"RAY_ADDRESS is {address!r}, {refusal(trial.returncode, answer, said)}")


def wrong_form(address: str) -> str | None:
    """What is wrong with an address that is none of a cluster, whatever runs there; the rest of a sentence about it."""
    if address.startswith(("http://", "https://")):
        return (
            "which is that of a dashboard: there `ray job submit` takes jobs. To join the cluster from one of its nodes give "
            "the host and port of its head, such as 10.0.0.1:6379; unset RAY_ADDRESS for a private cluster"
        )
    if address.startswith("ray://"):
        return (
            "which is that of a Ray client server, and a run needs to be on a node of the cluster: start it by `ray job "
            "submit`, or on a node with the host and port of the head, such as 10.0.0.1:6379"
        )
    found = HOST_AND_PORT.fullmatch(address)
    if address != "auto" and not (found and 0 < int(found[1]) < 1 << 16):
        return (
            "which is no address of a cluster: give host and port of its head, such as 10.0.0.1:6379, or auto for the one "
            "that this machine is a node of; unset it for a private cluster"
        )
    return None


def refusal(code: int, answer: str, said: str) -> str:
    """Why the trial did not join, by its exit code, what it answered and what it wrote besides; the rest of a sentence."""
    found = json.loads(answer) if answer else {"error": "", "words": said}
    words = found["words"]
    if found["error"] == "unreachable":
        return f"where nothing answers ({words}); unset it for a private cluster, or give the head of one that is up"
    if any(name in found["error"] + words for name in ("AuthenticationError", "InvalidAuthToken")):
        return (
            "but that cluster refuses this process, which has no token or another one; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN as for `ray start`"
        )
    if "Version mismatch" in words:
        return f"but that cluster runs other versions; use the environment that it was started from. {_short(words)}"
    if "Could not find any running Ray instance" in words:
        return "but this machine is a node of no cluster; start one (`ray start`), or unset it for a private cluster"
    if "No node info found" in words:
        return "but this machine is no node of that cluster; start the run by `ray job submit`, or on a node"
    if code == -signal.SIGALRM:
        return (
            f"but nobody there let this process join within {join_trial.JOIN_S} s: are host and port those of a head (6379 by "
            "default), and are both of one version?"
        )
    return f"but that cluster cannot be joined: {_short(words) or f'exit code {code}'}"


def _short(words: str) -> str:
    """The end, where the reason is, in one line."""
    line = " ".join(words.split())
    return line if len(line) <= WORDS else f"… {line[-WORDS:]}"

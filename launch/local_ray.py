"""A Ray cluster of this machine alone, for as long as one command needs it.

Owns one `ray start --head --block` process, its ports, its temporary directory and its authentication token. Invariant: when
`stop` returns, no process of this cluster is left and its temporary directory is gone; no other cluster was touched.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from rl_system.errors import UserError
from rl_system.machine.object_store import object_store_bytes
from rl_system.machine.resources import Resources

START_TIMEOUT_S = 120.0
JOB_ANSWER_S = 30.0
"""Longest that a cluster which comes up keeps one who submits a job waiting."""
STOP_TIMEOUT_S = 30.0
JOB_STOP_WAIT_S = 60
"""How long `ray job stop` gives a run to close its engines before it is killed."""
LOOPBACK = "127.0.0.1"
NODE_ADDRESS = "127.0.0.2"
"""Also loopback. Ray replaces 127.0.0.1 and localhost by the machine's outer address, but no other."""
# All below 10002, where the ports begin that Ray hands out to worker processes and refuses for anything else, or
# above 19999, where they end. Without Ray's defaults (6379, 8265, 10001, 52365): another Ray that starts at the same moment
# takes those.
GCS_PORTS = range(6400, 6500)
DASHBOARD_PORTS = range(8270, 8370)
CLIENT_PORTS = range(9800, 9900)
AGENT_PORTS = range(52400, 52500)


class LocalRay:
    """`with LocalRay(slots=2) as cluster:` — `cluster.environment` is what clients of the cluster need."""

    def __init__(self, slots: int, dashboard_port: int | None = None) -> None:
        if dashboard_port is not None and not is_free(dashboard_port):
            raise UserError(
                f"--dashboard-port {dashboard_port} is in use by another program; give another port, or none for a free "
                "one"
            )
        self.slots = slots
        self._claims = contextlib.ExitStack()
        self.dashboard_port = dashboard_port or self._claim(DASHBOARD_PORTS)
        self.port = self._claim(GCS_PORTS)
        # Ray's defaults for these two are fixed numbers, which a second cluster on the machine would not get.
        self.agent_port = self._claim(AGENT_PORTS)
        self.client_port = self._claim(CLIENT_PORTS)
        self.directory = Path(tempfile.mkdtemp(prefix="rl-ray-", dir="/tmp"))  # sockets need a short path
        self.environment = os.environ | {
            # Ray listens on every interface: the token keeps others out. Clients find it in the environment alone.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_JOB_STOP_WAIT_TIME_S": str(JOB_STOP_WAIT_S),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray would run actors at niceness 15, where any other program on the machine starves them.
            "RAY_worker_niceness": "0",
        }
        self.environment.pop("RAY_ADDRESS", None)
        self._process: subprocess.Popen | None = None

    @property
    def dashboard(self) -> str:
        return f"http://{LOOPBACK}:{self.dashboard_port}"

    @property
    def client_environment(self) -> dict[str, str]:
        """The process environment in which `ray job …` finds this cluster and may use it."""
        return self.environment | {"RAY_ADDRESS": self.dashboard}

    def start(self) -> None:
        """Return once the cluster takes jobs. Raises UserError with Ray's own words where it does not come up."""
        log = self.directory / "start.log"
        command = [
            self.ray, "start", "--head", "--block", "--disable-usage-stats",
            f"--node-ip-address={NODE_ADDRESS}", f"--port={self.port}",
            f"--dashboard-host={LOOPBACK}", f"--dashboard-port={self.dashboard_port}",
            f"--dashboard-agent-listen-port={self.agent_port}", f"--ray-client-server-port={self.client_port}",
            f"--temp-dir={self.directory}", f"--resources={json.dumps({'accelerator_slots': self.slots})}",
        ]  # fmt: skip
        if (store := object_store_bytes(Resources.look())) is not None:
            command.append(f"--object-store-memory={store}")
        with log.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal reaches the command that owns the cluster, which stops it in order.
            self._process = subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while is_free(self.dashboard_port) or not self._takes_jobs():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"Ray did not start: {' '.join(log.read_text(errors='replace').split())[-600:]}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End the cluster's processes, gently first."""
        if self._process is not None:
            cluster = self.processes()
            self._process.terminate()  # `ray start --block` ends its children in order
            _, left = psutil.wait_procs(cluster, STOP_TIMEOUT_S)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, STOP_TIMEOUT_S)
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)
        self._claims.close()

    def __enter__(self) -> LocalRay:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def ray(self) -> str:
        return str(Path(sys.executable).with_name("ray"))

    def _takes_jobs(self) -> bool:
        """Whether a job that does nothing is taken: who starts jobs listens seconds before the dashboard knows of it."""
        request = urllib.request.Request(
            f"{self.dashboard}/api/jobs/",
            data=json.dumps({"entrypoint": "true"}).encode(),
            headers={"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}", "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
        try:
            with opener.open(request, timeout=JOB_ANSWER_S):
                return True
        except (OSError, http.client.HTTPException):
            return False

    def _claim(self, candidates: range) -> int:
        """A port that nobody listens on and that no other cluster of this kind gets until `stop`: one that starts now listens
        seconds later."""
        for port in candidates:
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0rl-system-port-{port}")  # a name without a file, of whoever has it first, gone with the process
            except OSError:
                claim.close()
                continue
            if is_free(port):
                self._claims.enter_context(claim)
                return port
            claim.close()
        raise UserError(f"no port from {candidates.start} to {candidates.stop - 1} is free on this machine")

    def processes(self) -> list[psutil.Process]:
        """`ray start` and everything below it, workers included."""
        found = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            found = {process.pid: process for process in [root, *root.children(recursive=True)]}
        return list(found.values())


def is_free(port: int) -> bool:
    """Whether nobody listens on `port` of this machine's loopback addresses."""
    return all(_refuses(address, port) for address in (LOOPBACK, NODE_ADDRESS))


def _refuses(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) != 0

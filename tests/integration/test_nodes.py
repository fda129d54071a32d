"""A cluster whose second node does not see all that the first one does: it has another view of the file system."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.local_ray import NODE_ADDRESS, LocalRay

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False).returncode != 0,
        reason="this machine gives no process a view of the file system of its own",
    ),
]
SLOTS = 1
ROOT = Path(__file__).parents[2]
FAR = "127.0.0.3"
START_S = 120
FINISH_S = 300


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the second node sees nothing of what the first one puts there."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def far_node(cluster: LocalRay, hidden: Path) -> Iterator[None]:
    start = [
        cluster.ray, "start", f"--address={NODE_ADDRESS}:{cluster.port}", "--block", "--disable-usage-stats",
        f"--node-ip-address={FAR}", "--num-cpus=1", f"--resources={json.dumps({'accelerator_slots': 1, 'far': 1})}",
    ]  # fmt: skip
    view = f'mount -t tmpfs none {hidden} && exec "$@"'
    process = subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", view, "sh", *start],
        env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in (line := process.stdout.readline()):
            assert line and time.monotonic() < deadline
        yield
    finally:
        process.terminate()
        process.communicate(timeout=START_S)


SCENARIO = """
import asyncio, sys, time
from dataclasses import replace
from pathlib import Path
import ray
from actors.nodes import Newcomers, addresses, driver_node, require_fit
from rl_system.errors import UserError
from rl_system.shared_files import SharedFiles

hidden, seen = map(Path, sys.argv[2:])

def refusal(directory, model, **other):
    directory.mkdir(exist_ok=True)
    shared = replace(SharedFiles.mark(directory, model), **other)
    try:
        asyncio.run(require_fit(addresses(), shared))
    except UserError as error:
        newcomers = Newcomers(shared)
        deadline = time.monotonic() + 60
        while not newcomers._known and time.monotonic() < deadline:
            assert not newcomers.is_fit(far)
            time.sleep(0.2)
        assert newcomers._known == {far: False}
        return str(error)
    newcomers = Newcomers(shared)
    deadline = time.monotonic() + 60
    while not newcomers.is_fit(far):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return "fit"

ray.init(address=sys.argv[1], log_to_driver=False)
far, = set(addresses()) - {driver_node()}
for model in (seen / "model", hidden / "model"):
    model.mkdir()
    (model / "config.json").write_text("{}")
print(refusal(hidden / "run", seen / "model"))
print(refusal(seen / "run", hidden / "model"))
print(refusal(seen / "run", seen / "model", code="of another checkout"))
print(refusal(seen / "run", seen / "model"))
"""


def test_a_node_that_does_not_see_what_the_run_needs_is_named_before_it_starts(cluster, far_node, hidden, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCENARIO, f"{NODE_ADDRESS}:{cluster.port}", str(hidden), str(tmp_path)],
        env=cluster.environment, cwd=ROOT, capture_output=True, text=True, timeout=FINISH_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory, model, code, fit = done.stdout.splitlines()
    assert directory.startswith(f"node {FAR} does not see the run's directory {hidden / 'run'}")
    assert model.startswith(f"node {FAR} does not have {hidden / 'model' / 'config.json'}")
    assert code.startswith(f"node {FAR} runs other code")
    assert fit == "fit"
    assert done.stderr.count("is not taken in") == 3


def test_a_run_over_two_nodes_wants_a_directory_that_both_see_and_trains_in_one(
    cluster, far_node, hidden, tmp_path, submit, command
):
    short = {"steps": 1, "evaluation__before": "false", "evaluation__after": "false"}
    output, _ = submit("hidden", command(output=hidden, **short)).communicate(timeout=FINISH_S)
    assert f"error: node {FAR} does not see the run's directory {hidden / 'tau2_mock_cpu'}" in output, output
    assert "Traceback" not in output and list(hidden.glob("tau2_mock_cpu")) == []

    output, _ = submit("seen", command(**short)).communicate(timeout=FINISH_S)
    run = tmp_path / "tau2_mock_cpu"
    assert f"done: {run}" in output, output
    assert (run / "checkpoints" / "step_1" / "model" / "config.json").exists()

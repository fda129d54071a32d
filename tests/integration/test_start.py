"""A run by itself, without a cluster around it: what it says, and what it leaves when it does not come up."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from actors.engine.run_memory import run_directory

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
FINISH_S = 300
SHORT = {"steps": 1, "evaluation__before": "false", "evaluation__after": "false"}
BROKEN = """
import sys
import ray
import actors.{module}
from actors.{module} import {name} as whole
from launch import train

class {name}(whole.__ray_metadata__.modified_class):
    def {method}(self, *_, **__):
        raise RuntimeError("this {name} never comes up")

actors.{module}.{name} = ray.remote({name})
sys.exit(train.main(sys.argv[1:]))
"""
"""`launch.train` with one actor that fails."""


def alone(words: list[str], **variables: str) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        words, env=environment | {"PYTHONPATH": str(ROOT)} | variables, cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_by_itself_says_what_it_does_and_nothing_else(command, tmp_path):
    with alone(command(**SHORT)) as process:
        output, errors = process.communicate(timeout=FINISH_S)
    assert process.returncode == 0, errors
    first, *steps, last = output.splitlines()
    assert first.startswith("starting 1 rollout worker") and last.startswith(f"done: {tmp_path / 'tau2_mock_cpu'}")
    assert [line.split()[:2] for line in steps] == [["step", "1/1"]]
    assert errors == ""


@pytest.mark.parametrize(
    ("module", "name", "method"),
    [
        ("run", "Controller", "__init__"),
        pytest.param("fleet", "RolloutWorker", "__init__", marks=pytest.mark.slow),
        pytest.param("trainers", "Trainer", "setup", marks=pytest.mark.slow),
        pytest.param("trainers", "Trainer", "__init__", marks=pytest.mark.slow),
        pytest.param("run", "EnvironmentPool", "start", marks=pytest.mark.slow),
    ],
)
def test_whatever_fails_while_starting_leaves_nothing(command, tmp_path, module, name, method):
    output = tmp_path / "new" / "output"
    words = [sys.executable, "-c", BROKEN.format(module=module, name=name, method=method), *command(output=output, **SHORT)[3:]]
    with alone(words) as process:
        children: set[psutil.Process] = set()
        while process.poll() is None:
            children |= set(psutil.Process(process.pid).children(recursive=True))
            time.sleep(0.5)
        printed, errors = process.communicate(timeout=FINISH_S)
    assert process.returncode == 1 and f"this {name} never comes up" in errors, printed + errors
    assert len(children) > 5 and not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == []
    assert not run_directory(output / "tau2_mock_cpu").exists()
    # Others may have clusters on this machine: what is left of this one tells its own name.
    logs = Path(re.search(r"What the processes of Ray wrote is in (/tmp/rl-ray-\w+-logs)", errors)[1])
    assert (logs / "gcs_server.out").exists() and not Path(str(logs).removesuffix("-logs")).exists()
    shutil.rmtree(logs)


def test_a_run_that_is_stopped_while_it_starts_leaves_nothing_and_says_so(command, tmp_path):
    with alone(command(output=tmp_path / "output", **SHORT)) as process:
        assert process.stdout.readline().startswith("starting")
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=FINISH_S)
    assert (process.returncode, printed) == (130, "") and errors.split() == ["stopping", "stopped"], errors
    assert list(tmp_path.iterdir()) == []
    assert not run_directory(tmp_path / "output" / "tau2_mock_cpu").exists()

"""Joining clusters, real ones and what is none, and having a private one."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actors.connection import refusal, wrong_form
from launch.local_ray import NODE_ADDRESS, LocalRay

ROOT = Path(__file__).parents[2]
SOON_S = 30
JOIN = """
import sys
import ray
from actors.connection import joined
from launch.command import run_command
from rl_system.config.load import build_config

def join():
    print("joining", flush=True)
    with joined(build_config({"name": "joins"})):
        slots = ray.cluster_resources().get("accelerator_slots")
        print([slots, sorted(node["NodeManagerAddress"] for node in ray.nodes())], flush=True)
        if len(sys.argv) > 1:
            input()
            print(ray.get(ray.remote(num_cpus=0)(lambda: "works").remote()), flush=True)

sys.exit(run_command(join))
"""


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {"PYTHONPATH": str(ROOT)} | variables


def start(*words: str, **variables: str) -> subprocess.Popen:
    """A process that begins to join now. How long it took to come so far says something about the machine alone."""
    process = subprocess.Popen(
        [sys.executable, "-c", JOIN, *words], env=environment(**variables),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "joining\n"
    return process


def join(**variables: str) -> tuple[subprocess.CompletedProcess, float]:
    process, began = start(**variables), time.monotonic()
    output, errors = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors), time.monotonic() - began


def is_refused(done: subprocess.CompletedProcess) -> str:
    """In one paragraph, which is returned."""
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.startswith("error: RAY_ADDRESS is ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalRay]:
    with LocalRay(slots=3) as running:
        yield running


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Somebody listens there, takes what it is told, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = []

        def take() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()


def of(cluster: LocalRay) -> str:
    return f"{NODE_ADDRESS}:{cluster.port}"


def credentials(cluster: LocalRay) -> dict[str, str]:
    return {name: cluster.environment[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}


@pytest.mark.slow
def test_a_cluster_is_joined_with_its_token_and_quietly(cluster):
    done, _ = join(RAY_ADDRESS=of(cluster), **credentials(cluster))
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == f"[3.0, ['{NODE_ADDRESS}']]\n"


@pytest.mark.parametrize(
    "token",
    [{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "another" * 8}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["another", "none"],
)
def test_a_cluster_that_refuses_the_token_is_told_in_one_paragraph(cluster, token):
    done, seconds = join(RAY_ADDRESS=of(cluster), **token)
    text = is_refused(done)
    assert of(cluster) in text and "RAY_AUTH_TOKEN" in text and seconds < SOON_S


@pytest.mark.slow
def test_a_cluster_of_another_version_is_told_with_both(cluster, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import ray\nray.__version__ = '1.2.3'\n")
    done, seconds = join(RAY_ADDRESS=of(cluster), PYTHONPATH=f"{tmp_path}:{ROOT}", **credentials(cluster))
    text = is_refused(done)
    assert "1.2.3" in text and "other versions" in text and seconds < SOON_S


def test_an_address_where_nothing_answers_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    done, seconds = join(RAY_ADDRESS=f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in is_refused(done) and "Connection refused" in done.stderr and seconds < SOON_S / 2


@pytest.mark.slow
def test_somebody_who_listens_and_is_no_cluster_is_told_in_time(silent_port):
    done, seconds = join(RAY_ADDRESS=f"127.0.0.1:{silent_port}")
    assert "within 20 s" in is_refused(done) and seconds < 2 * SOON_S  # a busy machine imports Ray for long


def test_ctrl_c_ends_joining_at_once(silent_port):
    waiting = start(RAY_ADDRESS=f"127.0.0.1:{silent_port}")
    deadline = time.monotonic() + 60
    while not psutil.Process(waiting.pid).children():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    trial = psutil.Process(waiting.pid).children()
    time.sleep(3)
    began = time.monotonic()
    waiting.send_signal(signal.SIGINT)  # to this process alone, where a terminal tells all of them
    said = [waiting.stderr.readline()]
    while said[-1] == "stopping\n":
        said.append(waiting.stderr.readline())
    assert said[-1] == "stopped\n" and time.monotonic() - began < 3
    assert waiting.wait(60) == 130 and waiting.stderr.read() == ""  # Python ends slowly after Ray was imported
    assert not any(process.is_running() for process in trial)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:8265", "dashboard"),
        ("https://head:8265", "`ray job submit`"),
        ("ray://127.0.0.1:10001", "`ray job submit`"),
        ("garbage", "host and port"),
        ("10.0.0.1", "host and port"),
        ("10.0.0.1:port", "host and port"),
        ("10.0.0.1:0", "host and port"),
        ("10.0.0.1:65536", "host and port"),
        ("a b:6379", "host and port"),
    ],
)
def test_what_is_no_address_of_a_cluster_is_refused_with_what_would_be_one(address, words):
    assert words in wrong_form(address) and "6379" in wrong_form(address)


@pytest.mark.parametrize("address", ["auto", "head.example.org:6379", "10.0.0.1:6379", "[fe80::1]:6379"])
def test_an_address_in_the_right_form_is_tried(address):
    assert wrong_form(address) is None


def test_auto_on_a_machine_without_a_cluster_says_so():
    words = "Could not find any running Ray instance. Please specify the one to connect to by setting …"
    text = refusal(1, json.dumps({"error": "ConnectionError", "words": words}), "")
    assert "node of no cluster" in text and "ray start" in text


def test_a_trial_that_was_ended_by_force_is_told_with_what_it_said():
    text = refusal(-signal.SIGABRT, "", "a page\n" * 500 + "Check failed: the reason")
    assert text.endswith("Check failed: the reason") and "\n" not in text and len(text) < 700


def test_a_run_without_an_address_has_a_cluster_of_its_own_whatever_else_the_machine_runs(cluster, tmp_path):
    """Also two at once; and nothing of them stays."""
    both = [start("waits", HOME=str(tmp_path)) for _ in range(2)]
    assert [one.stdout.readline() for one in both] == ["[2.0, ['127.0.0.2']]\n"] * 2
    processes = [below for one in both for below in psutil.Process(one.pid).children(recursive=True)]
    words = " ".join(word for process in processes for word in process.cmdline())
    directories = {Path(each) for each in re.findall(r"/tmp/rl-ray-\w+", words)}
    assert len(processes) > 6 and len(directories) == 2 and "/tmp/ray/" not in words
    for one in both:  # the second still works when the first is gone
        output, errors = one.communicate("\n", timeout=120)
        assert (one.returncode, output, errors) == (0, "works\n", "")
    assert not any(process.is_running() for process in processes)
    assert not any(directory.exists() for directory in directories)
    assert list(tmp_path.iterdir()) == []  # no token in the home directory
    done, _ = join(RAY_ADDRESS=of(cluster), **credentials(cluster))
    assert done.returncode == 0

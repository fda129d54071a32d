import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launch.local_ray import LocalRay
from tests import shared_memory
from tests.models import save_tiny_chat_model

ROOT = Path(__file__).parents[2]
SHELL_S = 250

TINY_RUN = {
    "steps": 3,
    "rollout.group_size": 2,
    "rollout.groups_per_batch": 2,
    "rollout.max_staleness": 1,
    "rollout.sampling.max_new_tokens": 24,
    "rollout.max_episode_tokens": 48,
    "rollout.engine.kv_cache_gib": 0.25,
    "environment.concurrency": 8,
    # A random model solves nothing: every sample is worth -1 and is made less likely, so that the parameters really move.
    "algorithm.advantage": "reinforce_pp",
    "algorithm.normalise_batch": "false",
    "algorithm.reward_offset": "-1.0",
    "algorithm.drop_zero_signal": "false",
    "optimizer.learning_rate": "1e-3",
    "warm_start.enabled": "false",
    "evaluation.max_tasks": 2,
    "tracking.wandb": "offline",
    "tracking.dump_trees": "true",
    "checkpoint.every": 2,
}


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_chat_model(tmp_path_factory.mktemp("chat_model"))


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalRay]:
    """A real local Ray with token authentication and the module's SLOTS; nothing of it may be left afterwards."""
    before = shared_memory.names()
    with LocalRay(slots=getattr(request.module, "SLOTS", 2)) as running:
        yield running
        processes = running.processes()
    assert len(processes) > 5 and not any(psutil.pid_exists(process.pid) for process in processes)
    assert shared_memory.left_since(before) == set()
    assert not running.directory.exists()


@pytest.fixture
def command(chat_model: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """`launch.train` of a tiny run into `tmp_path`, with overrides; config: a file of configs/."""

    def build(*flags: str, config: str = "tau2_mock_cpu", **overrides) -> list[str]:
        settings = TINY_RUN | {"model.path": chat_model, "output": tmp_path}
        settings |= {key.replace("__", "."): value for key, value in overrides.items()}
        words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        return [
            sys.executable, "-m", "launch.train", "--config", str(ROOT / "configs" / f"{config}.yaml"), *flags, *words
        ]  # fmt: skip

    return build


@pytest.fixture
def flags(chat_model: Path) -> Callable[..., str]:
    """What makes a run tiny, and overrides. The last words of a documented command are the user's: they may stand there."""

    def build(*more: str, **overrides) -> str:
        settings = TINY_RUN | {"model.path": chat_model} | {key.replace("__", "."): value for key, value in overrides.items()}
        return " " + " ".join([*more, *(f"--{key} {value}" for key, value in settings.items())])

    return build


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def shell(cluster: LocalRay, home: Path) -> Callable[[str], str]:
    """What a person in the checkout who has the cluster's token sees on the terminal of a text, typed into a shell."""

    def run(text: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", text], cwd=ROOT, env=cluster.client_environment | {"HOME": str(home)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SHELL_S, check=False,
        )  # fmt: skip
        return done.stdout

    return run


@pytest.fixture
def submit(cluster: LocalRay) -> Callable[..., subprocess.Popen]:
    """Start a command by `ray job submit`; its output is that of the job."""

    def start(job: str, command: list[str]) -> subprocess.Popen:
        return subprocess.Popen(
            [cluster.ray, "job", "submit", "--submission-id", job, "--log-style=record", "--",
             "env", "--chdir", str(ROOT), *command],
            env=cluster.client_environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    return start

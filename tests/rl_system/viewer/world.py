"""Runs as the system's own writers leave them, with episodes to filter, and pages over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import uvicorn
import yaml

from rl_system.config.load import build_config
from rl_system.config.run import RunConfig
from rl_system.records import Ending, Episode, Task, Turn
from rl_system.tracking.episodes import write_episodes
from rl_system.tracking.events import TRAINED
from rl_system.tracking.tracker import Tracker
from rl_system.viewer.api import Api
from rl_system.viewer.server import make_app

TOKEN = "a-token-of-tests"
HOSTILE = (
    "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>\"'></pre></li><style>body{display:none}</style>"
    '<a href="javascript:window.hurt = 3">here</a>\u202e\u0000\x1b[31m ${window.hurt} {{hurt}}'
)


def configure(output: Path, name: str, steps: int = 10) -> RunConfig:
    config = build_config(
        {"name": name, "output": str(output), "steps": steps, "tracking": {"wandb": "disabled", "progress": False}}
    )
    (config.directory / "episodes").mkdir(parents=True)
    (config.directory / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return config


def episode(
    group: int,
    index: int,
    reward: float = 1.0,
    *,
    text: str = "hello",
    task: str = "a",
    version: int = 0,
    turns: int = 1,
    split: str = "train",
    errors: int = 0,
    ended: Ending = Ending.AGENT_STOP,
) -> Episode:
    transcript = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    made, before = [], np.arange(5, dtype=np.int32)
    for turn in range(turns):
        # All members begin alike; what they answer depends on the member from the second token on.
        response = np.array([10, 20 + index, 30 + turn], np.int32)
        made.append(
            Turn(
                before, response, np.array([-0.1, -2.0, -0.5], np.float32), np.full(3, version + turn, np.int32), "stop"
            )
        )
        before = np.concatenate([before, response, np.array([7], np.int32)])
        transcript.append(
            {
                "role": "assistant",
                "content": f"<think>I wonder</think>answer {turn}",
                "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": text}}],
            }
        )
        transcript.append({"role": "tool", "content": text})
    return Episode(
        Task("envs.test", "desk", task, split),
        group,
        index,
        made,
        transcript,
        reward,
        {"part": reward},
        ended,
        {"total": 1.5},
        {"tool_errors": errors},
    )


def write_group(config: RunConfig, group: int, members: list[Episode], dropped: str | None = None) -> Path:
    rewards = np.array([each.reward for each in members])
    path = config.directory / "episodes" / f"group_{group:06}.jsonl"
    write_episodes(path, members, rewards - rewards.mean(), dropped=dropped)
    return path


def make_run(output: Path, name: str = "run", steps: int = 6) -> RunConfig:
    """Two groups a step: one that is trained on, one without signal; an evaluation before and after."""
    config = configure(output, name, steps)
    with Tracker(config) as tracker:
        tracker.evaluation({"eval/success_rate": 0.25})
        write_episodes(
            config.directory / "episodes" / "evaluation_step_0.jsonl", [episode(-1, 0, 0.0, split="test")] * 2
        )
        for step in range(1, steps + 1):
            add_step(config, tracker, step)
        tracker.event("worker_lost", reason=HOSTILE)
    return config


def add_step(config: RunConfig, tracker: Tracker, step: int) -> None:
    group = 2 * (step - 1)
    write_group(
        config,
        group,
        [
            episode(group, i, i / 2, task=f"task-{step}", version=step - 1, turns=1 + i, text=f"word{step} common")
            for i in range(3)
        ],
    )
    write_group(config, group + 1, [episode(group + 1, i, 0.0, task="hard", errors=i) for i in range(3)], "zero_signal")
    tracker.step(
        step,
        {
            "reward/mean": step / 10,
            "train/entropy": 1.0 / step,
            "off_policy/staleness_mean": 0.5,
            "controller/rollout": 1.0,
            "perf/train_wait_share": 0.1,
        },
    )
    tracker.event(TRAINED, groups=[group])


@contextmanager
def serving(folders: list[Path], cache: Path) -> Iterator[str]:
    """The viewer's address, with its token."""
    app = make_app(Api(folders, cache=cache), TOKEN, 0, stopping=lambda: server.should_exit)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/?token={TOKEN}"
    finally:
        server.should_exit = True
        thread.join(20)

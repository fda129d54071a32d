"""An agent that does what the id of its task says, as an agent of somebody's own would be named."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

BEHAVIOURS = (
    "well", "plain", "own_loop", "by_call", "raises", "exits", "dies", "hangs", "sleeps", "refuses_to_stop", "leaves_tasks",
    "leaves_thread", "bad_reward", "nan", "nothing",
)  # fmt: skip
SEEN: list[str] = []


def tasks(split: str) -> list[dict]:
    return [{"id": name, "split": split, "nested": {"values": [1, 2]}} for name in BEHAVIOURS]


def run(task: dict, model):
    behaviour = task["id"]
    if behaviour == "plain":
        return 0.25
    if behaviour == "own_loop":
        return asyncio.run(_nap())
    if behaviour == "hangs":
        while True:
            time.sleep(0.01)
    return _run(behaviour, task, model)


async def _nap() -> float:
    await asyncio.sleep(0.01)
    return 0.5


async def _run(behaviour: str, task: dict, model):
    task["nested"]["values"].append(os.getpid())
    match behaviour:
        case "well":
            assert model.base_url.endswith("/v1") and model.api_key and model.name
            return 1.0
        case "by_call":
            return {"chatcmpl-1": 1, "chatcmpl-2": 0.5}
        case "raises":
            raise ValueError("no such order")
        case "exits":
            sys.exit(3)
        case "dies":
            os._exit(4)
        case "sleeps":
            await asyncio.sleep(3600)
        case "refuses_to_stop":
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
        case "leaves_tasks":
            asyncio.get_running_loop().create_task(asyncio.sleep(3600))
            return 1.0
        case "leaves_thread":
            threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
            return 1.0
        case "bad_reward":
            return "good"
        case "nan":
            return float("nan")
    return None

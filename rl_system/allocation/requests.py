"""A person's requests to a run that is going on: files in a folder of its directory.

Files reach a run wherever it runs, also one with a private Ray cluster, and need no more rights than its directory.
Invariant: a request is there as a whole or not at all, and is taken once, in the order in which requests were made.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from rl_system.allocation.decision import Move
from rl_system.strict_json import write_json

FOLDER = "requests"


@dataclass(frozen=True, slots=True)
class Request:
    """Move `count` accelerators. name: tells requests apart, in events too."""

    name: str
    move: Move
    count: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What was in the folder: requests, oldest first, and of each file that is none its name and what is wrong with it."""

    requests: list[Request] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)


def make_request(run: Path, move: Move, count: int) -> Request:
    """Leave a request for the run in directory `run`."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    request = Request(f"{time.time_ns()}-{os.getpid()}", move, count)
    write_json(_path(run, request.name), {"move": move.value, "count": count})
    return request


def take_requests(run: Path) -> Taken:
    """The requests made since the last call, and the files that are none; all are gone from the folder then."""
    taken = Taken()
    for path in sorted((run / FOLDER).glob("*.json")):
        content = path.read_text(errors="replace")
        path.unlink()
        try:
            values = json.loads(content)
            taken.requests.append(Request(path.stem, Move(values["move"]), int(values["count"])))
        except (ValueError, KeyError, TypeError):
            taken.faults[path.stem] = (
                f"{path} is no request to a run; make them with python -m launch.rebalance --run {run} --to-rollout 1"
            )
    return taken


def withdraw(run: Path, request: Request) -> bool:
    """Take `request` back; False where the run has it already."""
    try:
        _path(run, request.name).unlink()
    except FileNotFoundError:
        return False
    return True


def _path(run: Path, name: str) -> Path:
    return run / FOLDER / f"{name}.json"

"""One run as it is now: what grew since the last look is read, nothing else."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from rl_system.tracking.events import EVALUATION, FINISHED, TRAINED
from rl_system.viewer.growing import GrowingLines
from rl_system.viewer.index import Index
from rl_system.viewer.rows import number_of
from rl_system.viewer.runs import RunFolder

REFRESH_S = 1.0
"""A run is looked at again after that long at the earliest."""
CLOCK = "time/wall_clock_s"


class LiveRun:
    """Any thread may use it. `revision` grows whenever anything in the run did."""

    def __init__(self, folder: RunFolder, cache: Path) -> None:
        self.folder, self.index = folder, Index(folder, cache)
        self.metrics, self.events = GrowingLines(), GrowingLines()
        self.revision = 0
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._config: tuple[tuple[int, int] | None, dict[str, Any]] = (None, {})
        self._indexing: threading.Thread | None = None
        self._trained_of: tuple[int, int] | None = None

    def refresh(self, *, wait: bool = False) -> None:
        """Read what grew, at most once in `REFRESH_S`; episodes beside the caller unless it waits for them."""
        with self._lock:
            if time.monotonic() - self._looked >= REFRESH_S or wait:
                grew = self.metrics.refresh(self.folder.file("metrics.jsonl"))
                grew |= self.events.refresh(self.folder.file("events.jsonl"))
                self.revision += grew
                if self._indexing is None or not self._indexing.is_alive():
                    self._indexing = threading.Thread(target=self._read_episodes, name="index", daemon=True)
                    self._indexing.start()
                self._looked = time.monotonic()
            indexing = self._indexing
        if indexing is not None:
            # A small run is there at once; a large one while it is read.
            indexing.join(None if wait else 0.5)

    @property
    def is_indexing(self) -> bool:
        return self._indexing is not None and self._indexing.is_alive()

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration; empty where there is none that can be read."""
        path = self.folder.file("config.yaml")
        try:
            status = path.stat() if path is not None else None
            identity = (status.st_mtime_ns, status.st_size) if status is not None else None
            if identity != self._config[0]:
                loaded = yaml.safe_load(path.read_text(encoding="utf-8")) if path is not None else {}
                self._config = (identity, loaded if isinstance(loaded, dict) else {})
        except (OSError, ValueError, yaml.YAMLError):
            return {}
        return self._config[1]

    def state(self) -> str:
        """`finished`; `running`; `stopped`: ended in order before its last step; `killed`: its process is gone and had
        no time to say so; `quiet`: somewhere else, and has written nothing for a while.
        """
        lock = self.folder.file("run.lock")
        if lock is not None:
            try:
                holder = json.loads(lock.read_text(encoding="utf-8"))
                pid, host = int(holder["pid"]), str(holder["host"])
            except (OSError, ValueError, KeyError, TypeError):
                pid, host = 0, ""
            if host == socket.gethostname() and pid > 0:
                return "running" if _is_alive(pid) else "killed"
            return "quiet" if self.folder.is_quiet() else "running"
        if any(event.get("event") == FINISHED for event in self.events.lines):
            return "finished"
        return "stopped" if self.metrics.lines or self.events.lines else "empty"

    def summary(self) -> dict[str, Any]:
        """One line of the list of runs."""
        last = next((line for line in reversed(self.metrics.lines) if isinstance(line.get("step"), int)), {})
        rates = [event.get("eval/success_rate") for event in self.events.lines if event.get("event") == EVALUATION]
        steps, environment = self.config.get("steps"), self.config.get("environment") or {}
        return {
            "run": self.folder.name,
            "path": str(self.folder.path),
            "state": self.state(),
            "steps": last.get("step", 0),
            "of_steps": steps if isinstance(steps, int) else None,
            "wall_clock_s": number_of(last.get(CLOCK)),
            "updated_at": self.folder.written_at() or None,
            "reward": number_of(last.get("reward/mean")),
            "success": number_of(rates[-1]) if rates else None,
            "environment": environment.get("name") if isinstance(environment, dict) else None,
            "episodes": self.index.select("SELECT COUNT(*) FROM episodes")[0:1][0][0],
            "indexing": self.is_indexing,
        }

    def _read_episodes(self) -> None:
        changed = self.index.refresh()
        lines = (self.events.generation, len(self.events.lines))
        if lines != self._trained_of:
            self.index.set_trained(trained_steps(self.events.lines))
            self._trained_of = lines
            changed += 1
        self.revision += bool(changed)


def trained_steps(events: list[dict[str, Any]]) -> dict[int, int]:
    """The policy update that trained on a group, by group, as the run's events tell."""
    return {
        group: event["step"]
        for event in events
        if event.get("event") == TRAINED
        and isinstance(event.get("step"), int)
        and isinstance(event.get("groups"), list)
        for group in event["groups"]
        if isinstance(group, int)
    }


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

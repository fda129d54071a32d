"""Weights & Biases: one process's part of a W&B run.

W&B's client is another program beside this one, and a server that may be away. Whatever becomes of either is a `WandbFailed`
here and nothing else, so that it never ends a run.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import wandb

Mode = Literal["auto", "online", "offline", "disabled"]
OVER_TIME = ("reward/*", "eval/*")
"""Charts with wall-clock time on the x-axis; all others have the step."""
INIT_TIMEOUT_S = 30.0
FINISH_TIMEOUT_S = 60.0
"""A server that is away would be waited for without end. What it lacks is in W&B's files, and sent by the next process."""
FLUSH_S = 1.0
"""Longest that W&B's program keeps a row in memory: what a kill takes with it."""


class WandbFailed(Exception):
    """W&B cannot be used now; the message says why."""


def resolve_mode(mode: Mode) -> Literal["online", "offline", "disabled"]:
    """`auto`: online where an API key is set in the environment or stored by `wandb login`, else offline."""
    if mode != "auto":
        return mode
    return "online" if os.environ.get("WANDB_API_KEY") or _stored_login() else "offline"


def _stored_login() -> bool:
    host = urllib.parse.urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbRun:
    """Opens W&B run `run_id`, or goes on with it, with files in `directory`/wandb. Every method raises WandbFailed.

    place: folder with the files of this process. rows: how many rows W&B's server has already; 0 offline.
    """

    def __init__(
        self, directory: Path, run_id: str, *, project: str, name: str, online: bool, config: dict[str, Any]
    ) -> None:
        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=INIT_TIMEOUT_S,
            finish_timeout=FINISH_TIMEOUT_S,
            finish_timeout_raises=True,
            x_transaction_log_flush_interval=FLUSH_S,
        )
        # Or W&B advises on the console to install its tracer, for which `silent` is no reason not to.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        with _failures():
            self._run = wandb.init(
                project=project,
                name=name,
                dir=str(directory),
                id=run_id,
                resume="allow",
                mode="online" if online else "offline",
                config=config,
                settings=settings,
            )
            self._run.define_metric("step")
            self._run.define_metric("time/wall_clock_s")
            self._run.define_metric("*", step_metric="step")
            for pattern in OVER_TIME:
                self._run.define_metric(pattern, step_metric="time/wall_clock_s")
            self.place = Path(self._run.settings.sync_dir)
            self.rows = self._run.starting_step

    def log(self, row: dict[str, Any], place: int) -> None:
        with _failures():
            self._run.log(row, step=place, commit=True)

    def finish(self, *, failed: bool) -> None:
        """Returns when everything has arrived. failed: how W&B marks the run."""
        with _failures():
            self._run.finish(exit_code=int(failed))
            wandb.teardown()  # W&B's program says that it is done a moment before its file is whole; it ends after that


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # W&B raises a dozen classes that have nothing in common, and none of them may end a run
        with contextlib.suppress(Exception):
            wandb.teardown()  # or it would try once more when the interpreter ends, and never start again in this process
        raise WandbFailed(" ".join(str(error).split()) or type(error).__name__) from error

"""Weights & Biases: one W&B run per training run, the same one after a resume."""

from __future__ import annotations

import contextlib
import logging
import netrc
import os
import secrets
import urllib.parse
from pathlib import Path
from typing import Any, Literal

import wandb

from rl_system.errors import UserError

logger = logging.getLogger(__name__)

Mode = Literal["auto", "online", "offline", "disabled"]
OVER_TIME = ("reward/*", "eval/*")
"""Charts with wall-clock time on the x-axis; all others have the step."""
INIT_TIMEOUT_S = 60.0


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
    """A W&B run that lives in `directory`/wandb. Its id is kept there, so that a resumed run goes on in the same
    charts.
    """

    def __init__(
        self, directory: Path, *, project: str, name: str, mode: Mode, config: dict[str, Any], resume: bool
    ) -> None:
        identity = directory / "wandb" / "run_id"
        identity.parent.mkdir(parents=True, exist_ok=True)
        if not (resume and identity.exists()):
            identity.write_text(secrets.token_hex(4))
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                dir=str(directory),
                id=identity.read_text().strip(),
                resume="allow",
                mode=resolve_mode(mode),
                config=config,
                settings=wandb.Settings(console="off", silent=True, init_timeout=INIT_TIMEOUT_S),
            )
        except wandb.errors.Error as error:
            raise UserError(
                f"tracking.wandb is {mode!r}, but a W&B run cannot be started ({' '.join(str(error).split())}); log "
                "in, or use offline and send the run later with `wandb sync`"
            ) from None
        self._run.define_metric("step")
        self._run.define_metric("time/wall_clock_s")
        self._run.define_metric("*", step_metric="step")
        for pattern in OVER_TIME:
            self._run.define_metric(pattern, step_metric="time/wall_clock_s")

    def log(self, metrics: dict[str, float]) -> None:
        self._run.log(metrics)

    def close(self, *, failed: bool) -> None:
        """Finish the W&B run. Where a signal to the whole process group ended W&B's own process first, what it had written
        until then is in `wandb/`.
        """
        try:
            self._run.finish(exit_code=int(failed))
        except ConnectionError as error:
            logger.warning("W&B ended before the run did (%s); its charts may lack the last steps", error)
            with contextlib.suppress(ConnectionError):
                wandb.teardown()  # or it would try once more when the interpreter ends

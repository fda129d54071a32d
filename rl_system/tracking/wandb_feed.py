"""W&B, fed from a run's own journal: what it lacks it is given, by this process or by the next one.

Owns `wandb/sessions.jsonl`: for every process that fed W&B where it did, what it handed over, and whether that arrived; written
before anything is handed over. What to send into which W&B run is `wandb_plan`'s decision. Nothing about W&B ends a run.
"""

from __future__ import annotations

import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_system.strict_json import plain, to_json
from rl_system.tracking.events import EVALUATION
from rl_system.tracking.json_lines import JsonLines, scan_lines
from rl_system.tracking.wandb_plan import Plan, Session, plan_feed
from rl_system.tracking.wandb_run import Mode, WandbFailed, WandbRun, resolve_mode

FOLDER = "wandb"
JOURNAL = "sessions.jsonl"
REPLACED = "replaced"
"""Folder for offline files whose rows are in later ones; `wandb sync` does not look there."""
RETRY_S = 60.0
OFFLINE_PREFIX = "offline-run-"
UPLOADS = (".synced", ".syncstate")
"""Ends of the names of files that `wandb sync` leaves beside what it uploaded: when done, and when it began."""

Row = dict[str, Any]


def journal_rows(steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows for W&B, in the order of time: every step and every evaluation once, without what was not measured."""
    lines = [*steps, *(event for event in events if event.get("event") == EVALUATION)]
    return [as_row(line) for line in sorted(lines, key=lambda line: (line.get("time/wall_clock_s") or 0, line["step"]))]


def as_row(line: Mapping[str, Any]) -> Row:
    return {name: value for name, value in plain(line).items() if value is not None and name not in ("event", "at")}


def fingerprint(row: Row) -> str:
    return f"{zlib.crc32(to_json(row).encode()):08x}"


class WandbFeed:
    """rows: reads the journal as it is now. note: told, in a kind and fields, of everything a person should know."""

    def __init__(
        self,
        directory: Path,
        *,
        project: str,
        name: str,
        mode: Mode,
        config: dict[str, Any],
        rows: Callable[[], list[Row]],
        note: Callable[..., None],
    ) -> None:
        self.folder = directory / FOLDER
        self._directory, self._project, self._name, self._config = directory, project, name, config
        self._online = resolve_mode(mode) == "online"
        self._rows, self._note = rows, note
        self._run: WandbRun | None = None
        self._journal: JsonLines | None = None
        self._next = 0
        self._tried = 0.0
        self._open()

    def row(self, line: Mapping[str, Any]) -> None:
        """Send one more line of the journal, which holds it already."""
        if self._run is not None:
            self._send(as_row(line))
        elif time.monotonic() - self._tried >= RETRY_S:
            self._open()

    def close(self, *, failed: bool) -> None:
        """Have everything arrive. failed: how W&B marks the run. Safe to call twice."""
        if self._journal is None:
            self._open()
        if self._run is not None:
            try:
                self._run.finish(failed=failed)
                self._journal.write({"finished": True})
            except WandbFailed as error:
                self._note("wandb_lost", reason=str(error), then="the next --resume sends what did not arrive")
        self._forget()

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin a session, with all that W&B lacks. Where that fails, `row` tries again after a while."""
        self._tried = time.monotonic()
        try:
            self._begin()
        except (WandbFailed, OSError) as error:
            self._lost(str(error))

    def _begin(self) -> None:
        earlier = read_sessions(self.folder)
        rows = self._rows()
        prints = [fingerprint(row) for row in rows]
        plan = plan_feed(list(earlier.values()), prints, self._project, online=self._online)
        self._put_aside([name for name, session in earlier.items() if not session.reached])
        try:
            self._run = self._connect(plan)
        except WandbFailed as error:
            if not self._online:
                raise
            self._online = False
            self._note("wandb_offline", reason=str(error), then="`wandb sync` sends what is in W&B's files from now on")
            plan = plan_feed(list(earlier.values()), prints, self._project, online=False)
            self._run = self._connect(plan)
        if plan.first is None and self._run.rows > plan.handed:
            self._run.finish(failed=False)
            plan = Plan(None, replaces=plan.run_id, reason="somebody else has written to it")
            self._run = self._connect(plan)
        if plan.replaces is not None:
            self._note("wandb_replaced", run=plan.replaces, by=self._run_id, reason=plan.reason)
        self._journal = JsonLines(self.folder / JOURNAL, keep=lambda line: True)
        place = self._run.place.name
        self._journal.write({"session": place, "run": self._run_id, "project": self._project, "online": self._online})
        self._next = self._run.rows if plan.first is None else plan.first
        for row in rows[self._next :]:
            if self._run is not None:
                self._send(row)

    def _connect(self, plan: Plan) -> WandbRun:
        self._run_id = plan.run_id or secrets.token_hex(4)
        self.folder.mkdir(parents=True, exist_ok=True)
        return WandbRun(
            self._directory,
            self._run_id,
            project=self._project,
            name=self._name,
            online=self._online,
            config=self._config,
        )

    def _send(self, row: Row) -> None:
        self._journal.write({"row": self._next, "print": fingerprint(row)})
        try:
            self._run.log(row, self._next)
        except WandbFailed as error:
            self._lost(str(error))
            return
        self._next += 1

    def _lost(self, reason: str) -> None:
        self._note("wandb_lost", reason=reason, then="it is tried again now and then, and nothing of the run is lost")
        self._forget()

    def _forget(self) -> None:
        self._run = None
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _put_aside(self, names: list[str]) -> None:
        """Out of sight of `wandb sync`, which would send their rows a second time."""
        for name in names:
            if (place := self.folder / name).is_dir():
                (self.folder / REPLACED).mkdir(exist_ok=True)
                shutil.rmtree(self.folder / REPLACED / name, ignore_errors=True)  # of two lives within one second
                place.rename(self.folder / REPLACED / name)


def is_settled(directory: Path) -> bool:
    """Whether the last process that fed W&B from the run in `directory` handed over everything and saw it arrive."""
    lines = scan_lines(directory / FOLDER / JOURNAL).lines
    return bool(lines) and "finished" in lines[-1]


def read_sessions(folder: Path) -> dict[str, Session]:
    """What earlier processes handed to W&B, by the name of their folder in `folder`, in order."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for line in scan_lines(folder / JOURNAL).lines:
        if "session" in line:
            lines[line["session"]] = [line]
        elif lines:
            next(reversed(lines.values())).append(line)
    found = {place: _session(folder, place, *journal) for place, journal in lines.items()}
    places = sorted(path.name for path in folder.glob("*run-*") if path.is_dir() and not path.is_symlink())
    unknown = {place: _unknown(folder / place) for place in places if place not in found}
    return unknown | found


def _session(folder: Path, name: str, opened: dict[str, Any], *lines: dict[str, Any]) -> Session:
    finished = any("finished" in line for line in lines)
    # `wandb clean` removes what was uploaded.
    gone = not (folder / name).exists() and not (folder / REPLACED / name).exists()
    return Session(
        run_id=opened["run"],
        project=opened["project"],
        rows={line["row"]: line["print"] for line in lines if "row" in line},
        reached=opened["online"] or gone or _upload_began(folder / name),
        whole=finished and (opened["online"] or gone or _is_uploaded(folder / name)),
    )


def _unknown(place: Path) -> Session:
    """A folder that no journal tells of: offline files that nobody uploaded hold nothing that W&B has."""
    run_id = place.name.rpartition("-")[2]
    return Session(run_id, "", None, reached=_upload_began(place) or not place.name.startswith(OFFLINE_PREFIX))


def _upload_began(place: Path) -> bool:
    return any(any(place.glob(f"*.wandb{end}")) for end in UPLOADS)


def _is_uploaded(place: Path) -> bool:
    """Whether `wandb sync` was done with a file when nothing was written to it any more."""
    marks = list(place.glob(f"*.wandb{UPLOADS[0]}"))
    return bool(marks) and all(mark.stat().st_mtime >= mark.with_suffix("").stat().st_mtime for mark in marks)

"""What the viewer knows of a run's episodes: an SQLite file beside no run, in the user's cache.

Owns the index. Invariants: it can be thrown away at any time and is made anew from the run's files; an episode's row
tells where its line lies, so that one is read without the others; a file is read again only where it changed. Two viewers
may share it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_system.errors import UserError
from rl_system.viewer.growing import parse_line
from rl_system.viewer.rows import COLUMNS, row_of, words_of
from rl_system.viewer.runs import RunFolder

VERSION = 1
"""Of the tables below: another one gets another file."""
FILES = re.compile(r"group_(?P<group>\d{1,15})\.jsonl|evaluation_step_(?P<evaluation>\d{1,15})\.jsonl", re.ASCII)
BATCH = 64
"""Files that are read before what they hold can be seen, and another viewer gets its turn."""
BUSY_S = 30.0

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, inode INTEGER, size INTEGER, modified INTEGER,
    broken INTEGER);
CREATE TABLE IF NOT EXISTS episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, offset INTEGER, length INTEGER, {", ".join(COLUMNS)});
CREATE INDEX IF NOT EXISTS by_file ON episodes (file);
CREATE INDEX IF NOT EXISTS by_key ON episodes (key);
CREATE INDEX IF NOT EXISTS by_group ON episodes (grp);
CREATE INDEX IF NOT EXISTS by_time ON episodes (at, id);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (text, content='', tokenize="unicode61 tokenchars '_'");
CREATE TABLE IF NOT EXISTS trained (grp INTEGER PRIMARY KEY, step INTEGER);
CREATE INDEX IF NOT EXISTS by_step ON trained (step);
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an episode's line lies: a file of the run's `episodes`, its first byte and its bytes."""

    file: str
    offset: int
    length: int


def cache_directory() -> Path:
    """Made where missing; UserError where it cannot be."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = base / "rl-system" / "viewer"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(
            f"the viewer's index cannot be kept in {directory}: {error.strerror}; set XDG_CACHE_HOME to a directory "
            "that can be written"
        ) from None
    return directory


class Index:
    """Of `run`, in `directory`. Any thread may use it."""

    def __init__(self, run: RunFolder, directory: Path) -> None:
        name = hashlib.sha256(f"{VERSION} {run.path}".encode()).hexdigest()[:32]
        self.run, self.path = run, directory / f"{name}.sqlite"
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._readers = threading.local()
        self._generation = 0
        """Counts how often the file was made anew: connections to an old one are of no use."""

    def refresh(self) -> int:
        """Read what changed since the last time, and forget what is gone; the number of files read. Returns at once
        where another thread is at it.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            return self._refresh()
        except sqlite3.OperationalError:
            raise  # locked for too long, or the disk is full: the file itself is sound
        except sqlite3.DatabaseError:
            self._begin_anew()
            return self._refresh()
        finally:
            self._lock.release()

    def set_trained(self, steps: dict[int, int]) -> None:
        """steps: the policy update that trained on a group, by the group."""
        with self._lock, self._transaction() as writer:
            writer.execute("DELETE FROM trained")
            writer.executemany("INSERT INTO trained VALUES (?, ?)", steps.items())

    def select(self, query: str, values: tuple[Any, ...] | list[Any] = ()) -> list[sqlite3.Row]:
        """Rows of a query that changes nothing; of a damaged index none, and it is made anew."""
        try:
            return self._reader().execute(query, values).fetchall()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            with self._lock:
                self._begin_anew()
            return []

    def place(self, key: str) -> Place | None:
        rows = self.select(
            "SELECT f.name, e.offset, e.length FROM episodes e JOIN files f ON f.id = e.file WHERE e.key = ? "
            "ORDER BY e.id DESC LIMIT 1",
            (key,),
        )
        return Place(*rows[0]) if rows else None

    def read(self, key: str) -> dict[str, Any] | None:
        """The whole line of an episode; None where there is none, or where its file just changed."""
        place = self.place(key)
        path = self.run.file("episodes", place.file) if place is not None else None
        if path is None:
            return None
        try:
            with path.open("rb") as stream:
                stream.seek(place.offset)
                return parse_line(stream.read(place.length))
        except OSError:
            return None

    def close(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    # -- reading the run ---------------------------------------------------------------------------------------------

    def _refresh(self) -> int:
        there = dict(self._files())
        known = {
            name: tuple(rest) for name, *rest in self._write().execute("SELECT name, inode, size, modified FROM files")
        }
        changed = [name for name, status in there.items() if known.get(name) != status]
        gone = [name for name in known if name not in there]
        if gone:
            with self._transaction() as writer:
                for name in gone:
                    _forget(writer, name)
        # In the order in which they were written, so that what is newest has the highest row.
        changed.sort(key=lambda name: (there[name][2], name))
        for begin in range(0, len(changed), BATCH):
            with self._transaction() as writer:
                for name in changed[begin : begin + BATCH]:
                    self._take(writer, name, there[name])
        return len(changed)

    def _files(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """Name and identity (inode, size, time in ns) of the files with episodes."""
        directory = self.run.file("episodes")
        if directory is None:
            return
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if FILES.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        yield entry.name, (status.st_ino, status.st_size, status.st_mtime_ns)

    def _take(self, writer: sqlite3.Connection, name: str, status: tuple[int, int, int]) -> None:
        """Read one file from its beginning; they are written whole and never grow long."""
        held = writer.execute("SELECT inode, size, modified FROM files WHERE name = ?", (name,)).fetchone()
        if held is not None and tuple(held) == status:
            return  # another viewer was faster
        _forget(writer, name)
        path = self.run.file("episodes", name)
        try:
            data = path.read_bytes() if path is not None else None
        except OSError:
            data = None
        if data is None:
            return
        cursor = writer.execute("INSERT INTO files VALUES (NULL, ?, ?, ?, ?, 0)", (name, *status))
        file, offset, broken = cursor.lastrowid, 0, 0
        for number, line in enumerate(data.split(b"\n")):
            episode = parse_line(line) if line else None
            row = row_of(episode, FILES.fullmatch(name).groupdict(), number, status[2] / 1e9) if episode else None
            if row is not None:
                marks = ", ".join("?" * (len(COLUMNS) + 3))
                cursor = writer.execute(
                    f"INSERT INTO episodes VALUES (NULL, {marks})", (file, offset, len(line), *row.values())
                )
                writer.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (cursor.lastrowid, words_of(episode)))
            broken += bool(line) and row is None
            offset += len(line) + 1
        if broken:
            writer.execute("UPDATE files SET broken = ? WHERE id = ?", (broken, file))

    # -- connections -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        writer = self._write()
        writer.execute("BEGIN IMMEDIATE")
        try:
            yield writer
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                writer.execute("ROLLBACK")
            raise
        writer.execute("COMMIT")

    def _write(self) -> sqlite3.Connection:
        if self._writer is None:
            try:
                self._writer = self._connect()
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                self._begin_anew()
        return self._writer

    def _reader(self) -> sqlite3.Connection:
        if getattr(self._readers, "generation", None) != self._generation:
            self._readers.connection, self._readers.generation = self._connect(), self._generation
        return self._readers.connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")  # what a crash damages is made anew
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'by_step'").fetchall():
                connection.executescript(SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _begin_anew(self) -> None:
        """Throw a damaged index away."""
        if self._writer is not None:
            self._writer.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        self._generation += 1
        self._writer = self._connect()


def _forget(writer: sqlite3.Connection, name: str) -> None:
    """Words of a forgotten row stay in the search and lead nowhere: rows are never numbered again."""
    writer.execute("DELETE FROM episodes WHERE file = (SELECT id FROM files WHERE name = ?)", (name,))
    writer.execute("DELETE FROM files WHERE name = ?", (name,))

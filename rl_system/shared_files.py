"""What every node of a run must find under the same paths: its directory, to write in, its model, and its code.

Made where the run starts, and looked for on each of the other nodes.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

MARKER = ".node_check"
"""In the run's directory: a word that is new with every start."""
PACKAGES = ("rl_system", "actors", "envs")
"""What the actors of a run are made of."""
VISIBLE_WITHIN_S = 10.0
"""A file system over the network may show a new file late."""
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """word: what the marker in the run's directory holds. files: sizes of what is read, by path. code: digest of the packages."""

    directory: Path
    word: str
    files: dict[Path, int]
    code: str

    @classmethod
    def mark(cls, directory: Path, model_directory: Path, *others: Path | str | None) -> SharedFiles:
        """Of a run in `directory`, where the marker is written, whose actors read all files of `model_directory`, and
        `others`.
        """
        directory, model_directory = directory.absolute(), model_directory.absolute()
        word = secrets.token_hex(8)
        (directory / MARKER).write_text(word)
        read = [path for path in sorted(model_directory.iterdir()) if path.is_file()]
        read += [Path(path).expanduser().absolute() for path in others if path]
        return cls(directory, word, {path: path.stat().st_size for path in read}, code_digest())

    def missing(self) -> str | None:
        """What this machine does not find, and what would be right; the rest of a sentence about it. None: it has all."""
        deadline = time.monotonic() + VISIBLE_WITHIN_S
        while not self._sees_word():
            if time.monotonic() > deadline:
                return (
                    f"does not see the run's directory {self.directory}; give an --output that all nodes share, under the same "
                    "path"
                )
            time.sleep(POLL_S)
        own = self.directory / f"{MARKER}-{socket.gethostname()}-{os.getpid()}"
        try:
            own.write_text("")
            own.unlink()
        except OSError as error:
            return f"cannot write in the run's directory {self.directory} ({error.strerror})"
        for path, size in self.files.items():
            if not path.is_file() or path.stat().st_size != size:
                state = "holds another" if path.is_file() else "does not have"
                return (
                    f"{state} {path}, which a rollout worker or trainer there reads; use a directory that all nodes share "
                    "(XDG_CACHE_HOME for prepared models and warm starts, HF_HOME for those of the Hugging Face cache), or copy "
                    "it to the same path"
                )
        if code_digest() != self.code:
            return (
                f"runs other code than where the run was started (there {_places()}); update its checkout, or submit the code "
                "with the job (`ray job submit --working-dir`)"
            )
        return None

    def _sees_word(self) -> bool:
        try:
            return (self.directory / MARKER).read_text() == self.word
        except OSError:
            return False


def code_digest() -> str:
    """Of all modules of the packages, as this process would import them."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for folder in importlib.import_module(package).__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _places() -> str:
    return ", ".join(sorted({str(Path(folder).parent) for name in PACKAGES for folder in importlib.import_module(name).__path__}))

"""Names of runs, which become names of directories and files: what they are made of, and whether the file system takes them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ROOM_BELOW = 256
"""Bytes of a path that are left to what lies in a run's directory."""


def _check_name(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise ValueError(
            f"name is {name!r}, but a run's name is made of letters a to z, digits, '.', '_' and '-', and begins with a letter or "
            "a digit"
        )
    return name


RunName = Annotated[str, AfterValidator(_check_name)]


def require_room_for_names(output: Path, name: str, files: list[str]) -> None:
    """ValueError where the file system of `output`, or of the folder it will lie in, takes no directory `name` there, or
    none of `files` in it.
    """
    there = next((folder for folder in (output, *output.parents) if os.path.isdir(folder)), Path("/"))
    longest, whole = os.pathconf(there, "PC_NAME_MAX"), os.pathconf(there, "PC_PATH_MAX")
    for part in output.parts:
        if len(os.fsencode(part)) > longest:
            raise ValueError(f"output has a folder whose name is longer than the {longest} bytes that its file system takes")
    for file in (name, *files):
        if len(file) > longest:
            below = "" if file == name else f", of which the run makes file names of up to {len(file)} ({file[:8]}…{file[-20:]})"
            raise ValueError(
                f"name has {len(name)} characters{below}, but the file system of {there} takes {longest}; use a name of at "
                f"most {longest - len(file) + len(name)}"
            )
    if len(os.fsencode(output)) + len(name) + ROOM_BELOW > whole:
        raise ValueError(
            f"output and name make a path of {len(os.fsencode(output)) + len(name) + 1} bytes; the file system of {there} takes "
            f"{whole}, of which a run's own files need {ROOM_BELOW}: use shorter ones"
        )

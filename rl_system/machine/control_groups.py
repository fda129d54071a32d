"""The limits that control groups set to this process: those of its container, batch job, service or slice.

A process is in one group of every hierarchy, and what it may use is bounded by each of the groups above as well: a
container may have no limit of its own in a pod that has one. Reads `/proc/self/cgroup`, `/proc/self/mountinfo` and the groups'
own files, of version 1, version 2, or both at once (`man 7 cgroups`), below a root that tests make.

What is not there is no limit: a kernel without a controller, the root group, a hierarchy that is not mounted here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
NO_LIMIT_V1 = 1 << 62
"""Version 1 writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class Level:
    """One group: its directory, and whether it is of version 2."""

    directory: Path
    unified: bool

    def read(self, name: str) -> str | None:
        """Contents of the group's file `name`; None where it has none."""
        with suppress(OSError):
            return (self.directory / name).read_text().strip()
        return None

    def number(self, name: str) -> int | None:
        """What the file says; None for `max`, for version 1's way to write that, and where there is no such file."""
        text = self.read(name)
        if text is None or not re.fullmatch(r"\d+", text) or int(text) >= NO_LIMIT_V1:
            return None
        return int(text)

    def statistics(self, name: str) -> dict[str, int]:
        fields = (line.split() for line in (self.read(name) or "").splitlines())
        return {field[0]: int(field[1]) for field in fields if len(field) == 2 and field[1].isdigit()}


@dataclass(frozen=True, slots=True)
class Limit:
    """limit: of the group that leaves the least. left: of it."""

    limit: int
    left: int


def memory_limit(root: Path = ROOT) -> Limit | None:
    """Bytes. What is taken without what the kernel gives back when it is needed: file cache and reclaimable slabs."""
    return _tightest(map(_memory, levels("memory", root)))


def process_limit(root: Path = ROOT) -> Limit | None:
    """Processes and threads, which count alike."""

    def read(level: Level) -> Limit | None:
        limit = level.number("pids.max")
        return None if limit is None else Limit(limit, max(limit - (level.number("pids.current") or 0), 0))

    return _tightest(map(read, levels("pids", root)))


def processor_limit(root: Path = ROOT) -> float:
    """Processors' worth of time that the quotas leave, infinite where there are none."""

    def read(level: Level) -> float:
        if level.unified:
            quota, _, period = (level.read("cpu.max") or "max").partition(" ")
        else:
            quota, period = (level.read(f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        limited = quota.isdigit() and period.isdigit() and int(period) > 0  # -1 and max: none
        return int(quota) / int(period) if limited else math.inf

    return min(map(read, levels("cpu", root)), default=math.inf)


def levels(controller: str, root: Path = ROOT) -> Iterator[Level]:
    """This process's groups with `controller`, from its own up to the top of what is mounted here, of both versions."""
    groups = _groups(root)
    for mount in _mounts(root):
        unified = mount.controllers is None
        group = groups.get("" if unified else controller)
        if group is None or not (unified or controller in mount.controllers):
            continue
        top = root / mount.point.relative_to("/")
        directory = top / _below(group, mount.root)
        while not directory.is_dir() and directory != top:
            directory = directory.parent
        yield Level(directory, unified)
        while directory != top:
            directory = directory.parent
            yield Level(directory, unified)


def _memory(level: Level) -> Limit | None:
    statistics = level.statistics("memory.stat")
    if level.unified:
        # Beyond `high` a group is slowed down until it hardly moves: that is no memory to count on.
        limits, used, prefix = [level.number("memory.max"), level.number("memory.high")], "memory.current", ""
    else:
        # The second is that of all groups above, also of those that are not mounted here.
        above = statistics.get("hierarchical_memory_limit", NO_LIMIT_V1)
        limits = [level.number("memory.limit_in_bytes"), above if above < NO_LIMIT_V1 else None]
        used, prefix = "memory.usage_in_bytes", "total_"
    limit = min((each for each in limits if each is not None), default=None)
    if limit is None:
        return None
    returned = sum(statistics.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    returned += statistics.get("slab_reclaimable", 0)
    taken = max((level.number(used) or 0) - returned, 0)
    return Limit(limit, max(limit - taken, 0))


def _tightest(limits: Iterator[Limit | None]) -> Limit | None:
    return min((each for each in limits if each is not None), key=lambda each: each.left, default=None)


@dataclass(frozen=True, slots=True)
class _Mount:
    """controllers: None for version 2. root: the group that is seen at `point`."""

    controllers: frozenset[str] | None
    root: PurePosixPath
    point: PurePosixPath


def _groups(root: Path) -> dict[str, PurePosixPath]:
    """This process's group by controller; that of version 2 under the empty name."""
    found = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller or number == "0":
                found[controller] = PurePosixPath(path or "/")
    return found


def _mounts(root: Path) -> Iterator[_Mount]:
    seen = set()
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = None if kind[0] == "cgroup2" else frozenset(kind[-1].split(","))
        if controllers not in seen:  # the same hierarchy may be mounted again elsewhere
            seen.add(controllers)
            yield _Mount(controllers, PurePosixPath(_unescaped(fields[3])), PurePosixPath(_unescaped(fields[4])))


def _below(group: PurePosixPath, mounted: PurePosixPath) -> PurePosixPath:
    """Where `group` lies below a mount of the group `mounted`: at its top where the two are told from different places, as in
    a container that keeps its host's names or a namespace that begins below."""
    if ".." not in group.parts and group.is_relative_to(mounted):
        return group.relative_to(mounted)
    return PurePosixPath()


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text().splitlines()
    return []


def _unescaped(text: str) -> str:
    """The kernel writes spaces and the like as backslash and three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)

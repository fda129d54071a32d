"""Machines and containers as files below a root: what the kernel shows of them."""

from __future__ import annotations

from pathlib import Path

GIB = 1 << 30
V1_NONE = 9223372036854771712


class Machine:
    """available: of the machine, in GiB."""

    def __init__(self, root: Path, available: float = 64) -> None:
        self.root = root
        self._groups: list[str] = []
        self._mounts: list[str] = []
        self.write("proc/meminfo", f"MemTotal: {100 << 20} kB\nMemAvailable: {int(available * (1 << 20))} kB\n")
        self._show()

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def v2(self, group: str, *, root: str = "/", point: str = "/sys/fs/cgroup") -> Machine:
        """This process is in `group` of version 2, of which `root` is seen at `point`."""
        self._groups.append(f"0::{group}")
        self._mounts.append(f"35 24 0:30 {root} {point.replace(' ', chr(92) + '040')} rw,nosuid shared:9 - cgroup2 cgroup2 rw")
        return self._show()

    def v1(self, controllers: str, group: str, *, root: str = "/", number: int = 4) -> Machine:
        self._groups.append(f"{number}:{controllers}:{group}")
        self._mounts.append(
            f"36 31 0:32 {root} /sys/fs/cgroup/{controllers} rw,relatime - cgroup cgroup rw,{controllers}"
        )
        return self._show()

    def memory(self, directory: str, *, limit: float | str, used: float = 0, cache: float = 0, high: str = "max") -> Machine:
        """Of a group of version 2, in GiB; cache: file pages among what is used."""
        place = f"sys/fs/cgroup/{directory}"
        self.write(f"{place}/memory.max", _bytes(limit))
        self.write(f"{place}/memory.high", _bytes(high))
        self.write(f"{place}/memory.current", _bytes(used))
        self.write(
            f"{place}/memory.stat",
            f"anon 1\nfile {_bytes(cache)}\ninactive_file {_bytes(cache / 2)}\nactive_file {_bytes(cache / 2)}\n"
            "slab_reclaimable 0",
        )
        return self

    def memory_v1(self, directory: str, *, limit: float | None, used: float = 0, cache: float = 0, above: float | None = None):
        place = f"sys/fs/cgroup/memory/{directory}"
        self.write(f"{place}/memory.limit_in_bytes", V1_NONE if limit is None else _bytes(limit))
        self.write(f"{place}/memory.usage_in_bytes", _bytes(used))
        hierarchy = V1_NONE if above is None else _bytes(above)
        self.write(
            f"{place}/memory.stat",
            f"cache 0\ninactive_file 0\nhierarchical_memory_limit {hierarchy}\ntotal_inactive_file {_bytes(cache)}\n"
            "total_active_file 0",
        )
        return self

    def _show(self) -> Machine:
        self.write("proc/self/cgroup", "\n".join(self._groups))
        self.write("proc/self/mountinfo", "\n".join(["22 1 8:1 / / rw - ext4 /dev/root rw", *self._mounts]))
        return self


def _bytes(gib: float | str) -> int | str:
    return gib if isinstance(gib, str) and not gib.replace(".", "").isdigit() else int(float(gib) * GIB)

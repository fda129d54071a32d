"""Resident memory of a process, from the kernel's own counters."""

from __future__ import annotations

from pathlib import Path

KIB_PER_MIB = 1024
RESET_PEAK = "5"
"""What `/proc/self/clear_refs` takes to set the peak back to what is resident now."""


def resident_mib(pid: int | None = None) -> float:
    """Of process `pid`, by default this one."""
    return _status("VmRSS", pid) / KIB_PER_MIB


def peak_resident_mib() -> float:
    """Most since the process began or `reset_peak` was called."""
    return _status("VmHWM") / KIB_PER_MIB


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def _status(field: str, pid: int | None = None) -> int:
    for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid or 'self'}/status has no {field}")

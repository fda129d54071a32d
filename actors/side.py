"""What rollout workers and trainers have in common when an accelerator changes sides: members that come and go."""

from __future__ import annotations

from typing import Protocol


class SideFailed(RuntimeError):
    """A member of a side could not start, join or leave. The side goes on with the members that it had."""


class Members(Protocol):
    """One side of a run. A member is known by the device that it occupies. Every method ends in bounded time."""

    async def start_member(self, device: int) -> None:
        """Start a member on a free device, beside the others at work. Raises SideFailed; the device is free then."""

    async def join(self, device: int) -> None:
        """Let the member that was started work with the others. Raises SideFailed; the device is free then."""

    async def release(self, device: int) -> None:
        """Go on without the member on `device` and end it; the device is free then.

        Raises SideFailed where that cannot be done: the member is there and works as before then.
        """


def last_line(error: BaseException) -> str:
    """What went wrong, without the actor's traceback that Ray puts before it; never empty."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

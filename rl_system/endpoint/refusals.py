"""What the endpoint answers where it answers with no turn.

A refusal is the caller's affair and costs it one call. A failure is ours: the session remembers it, and whatever its agent
does then, its episode is not scored.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Refused(Exception):
    """A call that is not answered, and why. status: of HTTP; code: a word for programs; message: for people; parameter: the
    field of the request that is at fault.

    No status is one on which clients try again by themselves.
    """

    message: str
    status: int = 400
    code: str = "invalid_request"
    parameter: str | None = None

    def __str__(self) -> str:
        return self.message


class SamplingFailed(Exception):
    """No engine could answer. Says nothing about the policy."""

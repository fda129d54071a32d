"""Asking an actor: what an answer that does not come says about whoever was asked.

The one place that knows Ray's exceptions. Three things can be meant by one:

- the actor is *gone*, with its process or its node and all that it had: whoever owns it starts another;
- there is *no answer* to this call, which may or may not have been carried out: it is made again, and whether the
  actor lives is for its heartbeat to say;
- anything else is an *error* of ours, of the installation, or of what the actor did: it is raised on as it is.

What an actor's own code raised (`RayTaskError`) was raised by a live process, whatever its cause: an actor that met a dead
neighbour or a lost object on the way is not dead itself, although Ray gives the error the cause's type too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import ray.exceptions as ray_errors
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from actors.engine.errors import EngineBroken
from actors.side import last_line

Answer = TypeVar("Answer")


class Gone(Exception):
    """The actor that was asked is no more, or says itself that it is of no further use."""


class NoAnswer(Exception):
    """The call has no answer and will have none. Says nothing about the actor."""


_RAISED = (RayError, TimeoutError)
FAILED = (*_RAISED, Gone, NoAnswer)
"""All that a call may raise: for a member that is only starting, of which nothing is lost whatever it was."""

VERDICTS: dict[type[RayError], type[Exception] | None] = {
    # Its process ended: crashed, killed, or left by itself.
    ray_errors.RayActorError: Gone,
    ray_errors.ActorDiedError: Gone,
    ray_errors.WorkerCrashedError: Gone,
    ray_errors.AsyncioActorExit: Gone,
    # Ray's memory monitor ended its process because the node ran out of memory.
    ray_errors.OutOfMemoryError: Gone,
    # Its node ended, or the part of Ray without which nothing on the node can be reached.
    ray_errors.NodeDiedError: Gone,
    ray_errors.LocalRayletDiedError: Gone,
    # The accelerator that it stood on was taken away.
    ray_errors.ActorPlacementGroupRemoved: Gone,
    ray_errors.TaskPlacementGroupRemoved: Gone,
    # The connection broke. Where the process is dead, the next call finds out.
    ray_errors.ActorUnavailableError: NoAnswer,
    ray_errors.RpcError: NoAnswer,
    # It answered, and the answer was lost on the way: with a node that held it, or for want of room.
    ray_errors.ObjectLostError: NoAnswer,
    ray_errors.ObjectFetchTimedOutError: NoAnswer,
    ray_errors.ReferenceCountingAssertionError: NoAnswer,
    ray_errors.ObjectFreedError: NoAnswer,
    ray_errors.OwnerDiedError: NoAnswer,
    ray_errors.ObjectReconstructionFailedError: NoAnswer,
    ray_errors.PlasmaObjectNotAvailable: NoAnswer,
    ray_errors.ObjectStoreFullError: NoAnswer,
    ray_errors.OutOfDiskError: NoAnswer,
    # Somebody else gave up on the call, or it took too long.
    ray_errors.TaskCancelledError: NoAnswer,
    ray_errors.GetTimeoutError: NoAnswer,
    # Ray itself stumbled, such as over a raylet that was killed; its message alone tells over what.
    ray_errors.RaySystemError: NoAnswer,
    # Raised by code that ran, so by a live process.
    ray_errors.RayTaskError: None,
    ray_errors.UserCodeException: None,
    ray_errors.CrossLanguageError: None,
    ray_errors.UnserializableException: None,
    # Nothing was there to be asked, and asking again changes nothing.
    ray_errors.AuthenticationError: None,
    ray_errors.RuntimeEnvSetupError: None,
    ray_errors.ActorUnschedulableError: None,
    ray_errors.TaskUnschedulableError: None,
    ray_errors.ActorAlreadyExistsError: None,
    ray_errors.ActorHandleNotFoundError: None,
    # Of ways to call that are not used here.
    ray_errors.PendingCallsLimitExceeded: None,
    ray_errors.ObjectRefStreamEndOfStreamError: None,
    ray_errors.StreamingGeneratorReplayInconsistentError: None,
    ray_errors.OufOfBandObjectRefSerializationException: None,
    ray_errors.RayChannelError: None,
    ray_errors.RayChannelTimeoutError: None,
    ray_errors.RayCgraphCapacityExceeded: None,
    ray_errors.RayDirectTransportError: None,
}
"""By kind of error, whichever the nearest is: `Gone`, `NoAnswer`, or None for one that is raised on."""


def verdict(error: BaseException) -> type[Exception] | None:
    """`Gone`, `NoAnswer`, or None where `error` says something else about a call than that it has no answer."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, ray_errors.TaskCancelledError):
            return NoAnswer  # how the cancellation of a call under way arrives
        return Gone if isinstance(cause, EngineBroken) and not isinstance(cause, RayTaskError) else None
    if isinstance(error, TimeoutError):
        return NoAnswer
    return next((VERDICTS[each] for each in type(error).__mro__ if each in VERDICTS), None)


async def answer_to(call: Awaitable[Answer], limit_s: float | None = None) -> Answer:
    """The answer to `call`, a method of an actor under way. Raises Gone or NoAnswer where there is none, and otherwise what
    the method raised.

    limit_s: longest to wait for it, then it counts as not given; None: as long as the actor lives.
    """
    try:
        return await asyncio.wait_for(call, limit_s)
    except _RAISED as error:
        meaning = verdict(error)
        if meaning is None:
            raise
        raise meaning(_reason(error, limit_s)) from error


def _reason(error: BaseException, limit_s: float | None) -> str:
    if type(error) is TimeoutError:
        return f"no answer within {limit_s:g} s"
    if isinstance(error, OutOfMemoryError):  # followed by a page on what may be done about it
        return str(error).splitlines()[0]
    # Of a process that ended, Ray's guesses of why come in the same line.
    return last_line(error).split(" Some common causes include")[0]

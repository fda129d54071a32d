"""Joins the Ray cluster of an address and leaves it again, as a process of its own.

    python -P actors/join_trial.py HOST:PORT

Where joining goes wrong, Ray waits for minutes and does not hear Ctrl-C, or ends the process. What it does to this one tells
what it would do to the run. Standard output is a line of JSON, `{"error": kind, "words": text}`, or nothing where the cluster
was joined; a process that is ended by SIGALRM was still trying when its time was up.
"""

import contextlib
import json
import os
import signal
import socket
import sys

REACH_S = 8
"""For the name of the host, and for its first answer."""
IMPORT_S = 60
"""For what belongs to this machine and not to the cluster. A busy one takes long to read Ray."""
JOIN_S = 20
"""A cluster that is well is joined in one or two seconds."""


def main(address: str) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process also while Ray's own code waits
    if address != "auto":
        signal.alarm(REACH_S + 2)
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
        except OSError as error:
            answer("unreachable", error.strerror or str(error))
            return
    signal.alarm(IMPORT_S)
    # One attempt: what is refused once is refused again. And a machine whose node has not come up is none of the cluster's.
    os.environ["RAY_gcs_server_port_wait_time_s"] = "1"
    os.environ["RAY_gcs_server_request_timeout_seconds"] = str(JOIN_S // 2)
    with contextlib.redirect_stdout(sys.stderr):
        import ray

        signal.alarm(JOIN_S)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            ray.shutdown()
        except Exception as error:  # whatever it is, the run would meet it
            answer(type(error).__name__, " ".join(words for each in chain(error) if (words := str(each))))


def chain(error: BaseException | None):
    """An error and what led to it, first cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def answer(kind: str, words: str) -> None:
    print(json.dumps({"error": kind, "words": words}), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Ask a run that is going on to move accelerators between generation and training.

    python -m launch.rebalance --run runs/NAME --to-rollout 1
    python -m launch.rebalance --run runs/NAME --to-trainer 1 [--wait SECONDS]

The run hears the request at its next step boundary and moves one accelerator after the other, whatever its controller
would have advised, within `allocation.min_rollout` and `allocation.min_trainer`. Its answer, and every move, is in
`events.jsonl` of its directory; with --wait this command waits for the answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from launch.command import Parser, number, place, run_command, whole
from rl_system.allocation.decision import Move
from rl_system.allocation.requests import Request, make_request, withdraw
from rl_system.config.load import load_config
from rl_system.errors import UserError
from rl_system.tracking.json_lines import read_lines

POLL_S = 0.5


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.rebalance", description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=place(), required=True, help="directory of the run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--to-rollout", type=whole(), metavar="N", help="accelerators that stop training and generate")
    which.add_argument("--to-trainer", type=whole(), metavar="N", help="accelerators that stop generating and train")
    parser.add_argument("--wait", type=number(at_least=0), metavar="SECONDS", help="wait so long for the run's answer")
    return run_command(lambda: rebalance(parser.parse_args(arguments)))


def rebalance(options: argparse.Namespace) -> None:
    move, count = (
        (Move.TO_TRAINER, options.to_trainer) if options.to_rollout is None else (Move.TO_ROLLOUT, options.to_rollout)
    )
    check(options.run, move, count)
    request = make_request(options.run, move, count)
    if options.wait is None:
        print(f"asked for {count} {move.value.replace('_', ' ')}; the answer will be in {options.run / 'events.jsonl'}")
        return
    answer = wait_for_answer(options.run, request, options.wait)
    if not answer["accepted"]:
        raise UserError(f"the run refused: {answer['reason']}")
    print(f"accepted: {count} {move.value.replace('_', ' ')}")


def check(run: Path, move: Move, count: int) -> None:
    """Refuse what the run would have to refuse. UserError where it could never be done, whatever the split is now."""
    if not (run / "config.yaml").is_file():
        raise UserError(f"--run {run} holds no config.yaml; give the directory of a run, such as runs/tau2_mock_cpu")
    allocation = load_config(run / "config.yaml", []).allocation
    if allocation.mode == "off":
        raise UserError(
            f"--run {run} has allocation.mode 'off', in which the split stays as it is; start or resume it with "
            "'advise' (moves on request alone) or 'auto'"
        )
    movable = allocation.accelerators - allocation.min_rollout - allocation.min_trainer
    if not 1 <= count <= movable:
        raise UserError(
            f"--{move.value.replace('_', '-')} is {count}, but of the run's {allocation.accelerators} accelerators "
            f"allocation.min_rollout keeps {allocation.min_rollout} and allocation.min_trainer "
            f"{allocation.min_trainer}: 1 to {movable} can move"
        )


def wait_for_answer(run: Path, request: Request, seconds: float) -> dict:
    """The run's event about `request`. A request without an answer in time is withdrawn, with a UserError."""
    deadline = time.monotonic() + seconds
    while True:
        for event in read_lines(run / "events.jsonl"):
            if event["event"] == "rebalance_request" and event["request"] == request.name:
                return event
        if time.monotonic() > deadline:
            if withdraw(run, request):
                raise UserError(
                    f"--run {run} did not hear the request in --wait {seconds:g} seconds, and it was withdrawn; either "
                    "the run has ended, or a step takes longer"
                )
            deadline += seconds  # taken, and the answer on its way
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())

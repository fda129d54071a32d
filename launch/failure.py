"""How a run is told of that ended without being asked to."""

from __future__ import annotations

from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.origin import details, explain, one_line
from rl_system.strict_json import replace_file
from rl_system.tracking.json_lines import scan_lines
from rl_system.tracking.tracker import METRICS
from rl_system.training.checkpoint_directory import latest_checkpoint

TRACEBACK = "failure.txt"


def epitaph(config: RunConfig, error: Exception) -> str:
    """What went wrong and how to go on, in one paragraph; the traceback goes to a file beside the metrics."""
    path = config.directory / TRACEBACK
    replace_file(path, details(error))
    checkpoint = latest_checkpoint(config.directory / "checkpoints")
    step = max((line.get("step", 0) for line in scan_lines(config.directory / METRICS).lines), default=0)
    return (
        f"the run ended after step {step}: {reason_of(error)}. The traceback is in {path}. The same command "
        f"with --resume goes on from {checkpoint or 'the beginning, for there is no checkpoint'}"
    )


def reason_of(error: Exception) -> str:
    """In one line. What a person did wrong in words alone, also where it was found in an actor."""
    cause = getattr(error, "cause", error)
    return one_line(str(cause)) if isinstance(cause, UserError) else explain(error)

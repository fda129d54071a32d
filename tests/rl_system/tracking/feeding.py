"""One process of a run, as far as its tracker goes: for tests that kill it.

    python -m tests.rl_system.tracking.feeding DIRECTORY MODE RESUME_STEP LAST_STEP EVALUATE_AFTER HOW

HOW: finish, kill (the process), or kill-all (W&B's own program too).
"""

import os
import signal
import sys
import time

import psutil

from rl_system.config.load import build_config
from rl_system.tracking import wandb_run
from rl_system.tracking.tracker import Tracker


wandb_run.INIT_TIMEOUT_S = 5.0


def main(directory: str, mode: str, resume: str, last: str, evaluate: str, how: str) -> None:
    tracking = {"progress": False, "wandb": mode}
    config = build_config({"name": "run", "output": directory, "steps": 99, "tracking": tracking})
    resume_step = None if resume == "none" else int(resume)
    tracker = Tracker(config, resume_step=resume_step)
    for step in range((resume_step or 0) + 1, int(last) + 1):
        tracker.step(step, {"reward/mean": step / 10, "train/loss": float("nan") if step == 2 else 1.0})
        if str(step) in evaluate.split(",") and step not in tracker.evaluated:
            tracker.evaluation({"eval/success_rate": 0.5})
    if how == "finish":
        tracker.close()
        return
    time.sleep(float(os.environ.get("BEFORE_KILL_S", "0")))
    if how == "kill-all":
        for child in psutil.Process().children(recursive=True):
            child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])

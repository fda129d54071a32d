"""Ctrl-C ends every command in a word, whatever it is doing."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMANDS = {
    "train": ["train", "--config", "configs/tau2_mock_cpu.yaml", "--dry-run"],
    "evaluate": ["evaluate", "--policy", "gold"],
    "report": ["report", "runs/none"],
    "view": ["view", "runs/none"],
    "bench": ["bench", "executor", "--trees", "none.json"],
}


def interrupted(module: str, arguments: list[str], after_s: float) -> subprocess.CompletedProcess[str]:
    """The command, with a Ctrl-C `after_s` seconds after its first import."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", f"launch.{module}", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    before = ""
    while " launch\n" not in before:  # the package is imported; what the command itself needs comes after it
        line = process.stderr.readline()
        assert line, f"ended by itself: {before}"
        before += line
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    said = "".join(line + "\n" for line in errors.splitlines() if not line.startswith("import time:"))
    return subprocess.CompletedProcess(process.args, process.returncode, output, said)


@pytest.mark.parametrize("after_s", [0.0, 0.3])
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_a_command_imports_what_it_needs_ends_it_in_a_word(command, after_s):
    ended = interrupted(COMMANDS[command][0], COMMANDS[command][1:], after_s)
    assert ended.stderr.removeprefix("stopping\n") == "stopped\n"  # a busy machine takes a moment
    assert ended.returncode == 130

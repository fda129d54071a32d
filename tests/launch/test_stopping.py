"""Stopping a command that needs time for it, and one that runs another."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = """
import hashlib, sys, time
from launch import stopping
from launch.command import run_command
from launch.stopping import run_program, stop_when_terminated

def tidies_up():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        time.sleep(1.5)
        print("tidy", flush=True)

def is_deep_in_a_library():
    print("ready", flush=True)
    while True:  # seconds in which no handler of Python runs
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 2_000_000)

def runs_another():
    run_program([*sys.orig_argv[:-1], "tidies_up"])

def ends_at_once():
    stopping.SOON_S = 30.0  # so that a busy machine changes nothing
    print("ready", flush=True)
    time.sleep(60)

stop_when_terminated()
sys.exit(run_command(globals()[sys.argv[1]]))
"""


@pytest.fixture
def stopped():
    """Output and standard error of a command that was asked to stop when it was ready, and whether it ran on after its answer."""

    def stop(what: str, number: signal.Signals = signal.SIGINT) -> tuple[str, str, bool]:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, what], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(number)
        first = process.stderr.readline()
        ran_on = process.poll() is None
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        return output, first + errors, ran_on

    return stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_needs_time_to_stop_says_at_once_that_it_heard(stopped, number):
    assert stopped("tidies_up", number) == ("tidy\n", "stopping\nstopped\n", True)


def test_so_does_one_that_is_deep_in_a_library(stopped):
    assert stopped("is_deep_in_a_library") == ("", "stopping\nstopped\n", True)


def test_a_command_that_is_over_at_once_says_no_more_than_that(stopped):
    assert stopped("ends_at_once")[:2] == ("", "stopped\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_a_command_runs_is_asked_to_stop_and_has_the_time_it_needs(stopped, number):
    assert stopped("runs_another", number) == ("tidy\n", "stopping\nstopped\nstopped\n", True)

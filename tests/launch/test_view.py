import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from launch.view import main
from tests.rl_system.viewer.world import make_run


def test_the_command_prints_an_address_serves_it_on_loopback_and_ends_in_a_word(tmp_path):
    make_run(tmp_path / "runs", steps=1)
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.view", str(tmp_path / "runs")],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    try:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"<main" in opener.open(address, timeout=20).read()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address.partition("?")[0], timeout=20)
        assert b'"run": "run"' in opener.open(address.partition("?")[0] + "api/runs", timeout=20).read()
        assert list((tmp_path / "cache" / "rl-system" / "viewer").iterdir())
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and errors.splitlines()[-1] == "stopped"


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda path: [str(path / "none")], "no directory"),
        (lambda path: [str(path)], "no run lies in"),
        (lambda path: [str(path), "--port", "0"], "--port"),
        (
            lambda path: [str(make_run(path, steps=1).directory), "--tokenizer", str(path / "none.json")],
            "tokenizer.json",
        ),
    ],
)
def test_what_cannot_be_shown_is_one_paragraph(tmp_path, capsys, monkeypatch, make, named):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(make(tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and named in error and error.count("\n") == 1


def test_a_port_that_is_taken_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_run(tmp_path, steps=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
    assert "--port" in capsys.readouterr().err

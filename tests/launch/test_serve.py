"""A checkpoint as a server that OpenAI's client can talk to."""

import os
import signal
import socket
import subprocess
import sys
import time

import openai
import pytest
import yaml

from launch.serve import main
from tests.models import save_tiny_chat_model

START_S = 300.0


def words_of_dry_run(capsys, *arguments: str) -> list[str]:
    assert main([*arguments, "--dry-run"]) == 0
    return capsys.readouterr().out.split()


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_a_checkpoint_is_served_as_its_run_sampled_it(tmp_path, capsys):
    model = save_tiny_chat_model(tmp_path / "checkpoints" / "step_3" / "model")
    run = {"name": "r", "model": {"path": str(model), "max_model_len": 512, "tool_format": "llama3", "dtype": "bfloat16"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(run))
    words = words_of_dry_run(capsys, "--model", str(model))
    assert value(words, "--model") == str(model) and value(words, "--max-model-len") == "512"
    assert value(words, "--dtype") == "bfloat16" and value(words, "--tool-call-parser") == "llama3_json"
    assert value(words, "--host") == "127.0.0.1"


def test_a_model_without_a_run_is_served_by_the_defaults_and_other_options_go_to_vllm(tmp_path, capsys):
    model = save_tiny_chat_model(tmp_path / "model")
    words = words_of_dry_run(capsys, "--model", str(model), "--max-num-seqs", "7")
    assert value(words, "--dtype") == "float32" and value(words, "--max-num-seqs") == "7"


def test_other_machines_are_let_in_with_a_key_alone_and_no_list_of_processes_shows_it(tmp_path, capsys):
    model = save_tiny_chat_model(tmp_path / "model")
    assert main(["--model", str(model), "--host", "0.0.0.0", "--dry-run"]) == 2
    assert "--api-key is not given" in capsys.readouterr().err
    words = words_of_dry_run(capsys, "--model", str(model), "--host", "0.0.0.0", "--api-key", "tell-nobody")
    assert "tell-nobody" not in words


@pytest.mark.parametrize("port", ["0", "99999", "http"])
def test_a_port_that_is_none_is_refused(port, capsys):
    assert main(["--model", "smollm2-135m-instruct", "--port", port, "--dry-run"]) == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.slow
def test_openais_client_talks_to_a_served_checkpoint_and_nothing_is_left_when_it_ends(tmp_path):
    model = save_tiny_chat_model(tmp_path / "model")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "launch.serve", "--model", str(model), "--port", str(port), "--api-key", "secret"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="secret", max_retries=0)
        deadline = time.monotonic() + START_S
        while True:
            try:
                assert [each.id for each in client.models.list()] == ["policy"]
                break
            except openai.APIConnectionError:
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(1)
        answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hi."}], max_tokens=4)
        assert answer.usage.completion_tokens >= 1
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="wrong").models.list()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.killpg(server.pid, 0)

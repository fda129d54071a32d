"""The quickstart as far as it goes without a cluster."""

import pytest
import yaml

from launch import quickstart
from tests.rl_system.tracking.runs import write_run


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """Runs the quickstart; what it would start, by name or command, in order."""
    started = []
    monkeypatch.setattr(quickstart, "step", lambda name, command, **_: started.append((name, command)))
    monkeypatch.setattr(quickstart, "run_program", lambda command: started.append(("alone", command)) or 0)

    class Cluster:
        dashboard = ""

        def __init__(self, *_) -> None:
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            pass

    monkeypatch.setattr(quickstart, "LocalRay", Cluster)
    monkeypatch.setattr(quickstart, "submit", lambda cluster, command: started.append(("submit", command)) or 0)
    config = tmp_path / "quick.yaml"
    config.write_text(yaml.safe_dump({"name": "quick", "output": str(tmp_path), "steps": 4}))

    def start(*words: str) -> list[tuple[str, list[str]]]:
        assert quickstart.main(["--config", str(config), *words]) == 0
        return started

    return start


@pytest.mark.parametrize("words", [[], ["--resume"]])
def test_a_quickstart_that_was_stopped_or_killed_goes_on_by_the_same_command(begun, words):
    started = dict(begun(*words, "--seed", "1"))
    assert started["submit"][2:4] == ["launch.train", "--resume"]
    assert started["submit"].count("--resume") == 1 and started["submit"][-2:] == ["--seed", "1"]
    assert "--resume" in started["configuration"] and "--resume" not in started["warm start"]


def test_a_quickstart_of_a_complete_run_starts_no_cluster(begun, tmp_path):
    write_run(tmp_path, "quick", steps=4, finished=True)
    started = dict(begun())
    assert "submit" not in started and started["alone"][2:4] == ["launch.train", "--resume"]

from pathlib import Path

import pytest

from rl_system.config.environment import EnvironmentConfig


@pytest.mark.parametrize(
    ("values", "domain", "label"),
    [
        ({}, "mock", "tau2 mock"),
        ({"domain": None}, "mock", "tau2 mock"),
        ({"domain": "telecom"}, "telecom", "tau2 telecom"),
        ({"name": "examples.guessing"}, None, "examples.guessing"),
        ({"name": "examples.guessing", "domain": "mock"}, "mock", "examples.guessing"),
    ],
)
def test_mock_is_a_domain_of_tau2_and_of_nothing_else(values: dict, domain: str | None, label: str) -> None:
    config = EnvironmentConfig(**values)
    assert (config.domain, config.label) == (domain, label)
    assert EnvironmentConfig(**config.model_dump()) == config


@pytest.mark.parametrize("file", ["agents/mine.py", "./agents/mine.py", str(Path.cwd() / "agents" / "mine.py")])
def test_a_file_is_called_by_its_module(file):
    assert EnvironmentConfig(name=file).name == "agents.mine"


@pytest.mark.parametrize("file", ["/elsewhere/mine.py", "../mine.py"])
def test_a_file_outside_of_the_folder_is_refused_with_what_would_be_right(file):
    with pytest.raises(ValueError, match="PYTHONPATH and give the module's name 'mine'"):
        EnvironmentConfig(name=file)

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

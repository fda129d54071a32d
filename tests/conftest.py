"""Options and markers of the whole suite."""

import pytest
import torch
from hypothesis import HealthCheck, settings

# How fast an example is made says something about the machine, not about the code.
ANY_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("search", **ANY_MACHINE)
# The same code has the same result; `--hypothesis-profile=search` looks for examples that nobody has seen yet.
settings.register_profile("same examples", derandomize=True, **ANY_MACHINE)
settings.load_profile("same examples")

LONG = ("integration", "actors", "launch", "envs")
"""Folders whose files take longest: on several cores they begin first, so that none of them is left to the end alone."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = pytest.mark.skip(reason="takes minutes; run with --slow")
    gpu = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        # By marker: among the keywords are the names of all folders above, and a checkout may be in one named `gpu`.
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(slow)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(gpu)
    if hasattr(config, "workerinput"):
        folders = [*LONG, None]
        items.sort(key=lambda item: folders.index(next((each for each in LONG if each in item.path.parts), None)))

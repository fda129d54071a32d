"""What the README asks for is enough for what it promises."""

import re

from rl_system.config.load import load_config
from rl_system.training.prepared import PREPARED_MODELS
from tests.integration.documented import ROOT, submission


def test_a_node_of_a_cluster_has_the_model_of_the_run_that_is_submitted() -> None:
    config = load_config(ROOT / re.search(r"--config (\S+)", submission())[1], [])
    assert str(config.model.path) in PREPARED_MODELS
    nodes = (ROOT / "README.md").read_text().split("## On a Ray cluster")[1].split("ray start")[0]
    assert nodes.index("bash launch/setup.sh") < nodes.index(".venv/bin/python -m launch.prepare_model")

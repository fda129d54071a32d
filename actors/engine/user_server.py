"""The model that plays the user, served on this machine by vLLM's OpenAI-compatible server.

    async with UserServer(config.environment.user, device="cpu") as address: …

Owns one server process in a session of its own. Invariant: when the block is left, however, that process and its
children are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import psutil

from actors.engine.server_command import server_command, server_variables
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.config.model import ModelConfig
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.training.prepared import model_directory
from rl_system.training.serving_files import serving_arguments

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.5
LOOPBACK = "127.0.0.1"


@contextlib.asynccontextmanager
async def served_user(config: RunConfig) -> AsyncIterator[EnvironmentConfig]:
    """The environment's configuration with an address for the user's model, which is served here if it has none yet."""
    environment = config.environment
    if environment.user.kind != "llm" or environment.user.api_base is not None:
        yield environment
        return
    async with UserServer(environment.user, device=config.model.device) as address:
        user = environment.user.model_copy(update={"api_base": address})
        yield environment.model_copy(update={"user": user})


class UserServer:
    def __init__(self, config: UserConfig, *, device: str, max_model_len: int = 8192) -> None:
        """Raises UserError unless `config.model` is a model directory or the name of a prepared one."""
        self._config = config
        model_directory(config.model)
        self._model = ModelConfig(path=config.model, device=device, max_model_len=max_model_len)
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> str:
        """The server's address, once it answers. Raises UserError with the server's own words where it does not come
        up."""
        port = _free_port()
        self._held = contextlib.ExitStack()
        files = self._held.enter_context(serving_arguments(self._model))
        command = server_command(self._model, files, name=self._config.model, host=LOOPBACK, port=port)
        self._log = self._held.enter_context(tempfile.TemporaryFile())
        self._process = subprocess.Popen(
            [*command, "--max-num-seqs", str(self._config.max_concurrency)],
            env=os.environ | server_variables(self._model.device),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await asyncio.to_thread(_answers, f"http://{LOOPBACK}:{port}/health"):
                    if self._process.poll() is not None:
                        raise UserError(
                            f"the server of environment.user.model {self._config.model!r} ended: {self._words()}"
                        )
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            words = self._words()
            await self.stop()
            raise UserError(
                f"the server of environment.user.model {self._config.model!r} did not answer within "
                f"{START_TIMEOUT_S:g} s: {words}"
            ) from None
        except BaseException:
            await self.stop()
            raise
        return f"http://{LOOPBACK}:{port}/v1"

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the server's whole session, gently first."""
        process, self._process = self._process, None
        if process is None:
            return
        for wish in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, wish)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, STOP_TIMEOUT_S)
        # The second signal also reaches children that a server which went by itself left behind. A busy machine takes a
        # moment to end them.
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while await asyncio.to_thread(living, process.pid) and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        self._held.close()

    def _words(self) -> str:
        self._log.seek(0)
        return " ".join(self._log.read().decode(errors="replace").split())[-600:]


def living(group: int) -> list[psutil.Process]:
    """Processes of a group that still run; one that was killed may wait for its new parent to collect it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]

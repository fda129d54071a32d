"""An OpenAI-compatible server of a model or of a run's checkpoint, to talk to: vLLM's own, told what the run knows.

    python -m launch.serve --model runs/NAME/checkpoints/step_14/model --port 8000
    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "policy", "messages": [{"role": "user", "content": "Hello."}]}'

Chat template, tool format, dtype and context are those of the run that the checkpoint belongs to, where there is one beside
it. Any other --option goes to vLLM as it is. Listens on loopback unless --host says otherwise; then give an --api-key too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from actors.engine.server_command import server_command, server_variables
from launch.command import Parser, port, run_command
from launch.stopping import stop_when_terminated
from rl_system.config.load import check, load_config
from rl_system.config.model import ModelConfig
from rl_system.errors import UserError
from rl_system.training.prepared import model_directory
from rl_system.training.serving_files import serving_arguments

LOOPBACK = "127.0.0.1"
STOP_TIMEOUT_S = 30.0


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="python -m launch.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a model directory, such as runs/NAME/checkpoints/step_N/model, or a name")
    parser.add_argument("--name", default="policy", help="what clients call the model (default: %(default)s)")
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=port(), default=8000)
    parser.add_argument("--api-key", help="what clients have to show; needed where others can reach the address")
    parser.add_argument("--dry-run", action="store_true", help="print vLLM's command line and start nothing")
    return run_command(lambda: serve(*parser.parse_known_args(arguments)))


def serve(options: argparse.Namespace, more: list[str]) -> int:
    if options.host not in (LOOPBACK, "localhost", "::1") and not options.api_key:
        raise UserError(
            f"--host {options.host} lets other machines in, and --api-key is not given: anybody could use the model; give a "
            f"key, or leave --host out to listen on {LOOPBACK}"
        )
    config = served_model(options.model)
    directory = model_directory(config.path)
    with serving_arguments(config) as files:
        command = server_command(config, files, name=options.name, host=options.host, port=options.port) + more
        if options.dry_run:
            print(" ".join(command))
            return 0
        # In the environment, where no list of processes shows it.
        key = {"VLLM_API_KEY": options.api_key} if options.api_key else {}
        print(f"serving {directory} as {options.name!r} at http://{options.host}:{options.port}/v1 (Ctrl-C ends it)", flush=True)
        return until_it_ends(command, os.environ | server_variables(config.device) | key)


def until_it_ends(command: list[str], environment: Mapping[str, str]) -> int:
    """Exit code of the server's process, which does not outlive this one unless that is killed."""
    stop_when_terminated()
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def served_model(path: str) -> ModelConfig:
    """The run's own model section where `path` is a checkpoint's model with the run's configuration above it."""
    model = check(ModelConfig, {"path": path}, "--model")
    above = Path(model.path).resolve().parents
    run = above[2] / "config.yaml" if len(above) > 2 and above[1].name == "checkpoints" else None
    if run is None or not run.is_file():
        return model
    return load_config(run, []).model.model_copy(update={"path": model.path})


if __name__ == "__main__":
    sys.exit(main())

"""See what the agents of runs do, while they go on or afterwards, in a browser.

    python -m launch.view                      all runs in runs/
    python -m launch.view runs/A runs/B        these

It reads the runs' files and writes none there. The address that it prints carries a token; without it nothing is shown.
"""

from __future__ import annotations

import argparse
import secrets
import socket
import sys
from pathlib import Path

from launch.command import Parser, place, port, run_command
from launch.stopping import stop_when_terminated
from rl_system.errors import UserError

PORT = 8321
NEIGHBOURS = 20
"""Ports after `PORT` that are tried where none was asked for."""
LOOPBACK = "127.0.0.1"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="python -m launch.view", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs",
        nargs="*",
        type=place(),
        default=[Path("runs")],
        help="run directories, or directories with runs in them (default: runs)",
    )
    parser.add_argument("--port", type=port(), help=f"default: the first free one from {PORT} on")
    parser.add_argument(
        "--tokenizer",
        type=place(),
        metavar="FILE",
        help="a tokenizer.json for runs without a checkpoint yet; tokens are shown as ids without",
    )
    return run_command(lambda: view(parser.parse_args(arguments)))


def view(options: argparse.Namespace) -> None:
    import uvicorn

    from rl_system.viewer.api import Api
    from rl_system.viewer.server import make_app
    from rl_system.viewer.token_texts import TokenTexts

    if options.tokenizer is not None:
        TokenTexts(options.tokenizer)
    api = Api(options.runs, tokenizer=options.tokenizer)
    listening = _listen(options.port)
    number, token = listening.getsockname()[1], secrets.token_urlsafe(24)
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(api, token, number, stopping=lambda: server.should_exit),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
    )
    print(f"http://{LOOPBACK}:{number}/?token={token}", flush=True)
    print("Ctrl-C ends the viewer; the runs do not notice.", flush=True)
    stop_when_terminated()
    server.run(sockets=[listening])


def _listen(wanted: int | None) -> socket.socket:
    for number in range(PORT, PORT + NEIGHBOURS) if wanted is None else [wanted]:
        try:
            return socket.create_server((LOOPBACK, number), backlog=128)
        except OSError as error:
            fault = error
    raise UserError(f"port {number} cannot be listened on: {fault.strerror}; give another --port")


if __name__ == "__main__":
    sys.exit(main())

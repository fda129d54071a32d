"""A server that speaks the chat protocol and answers what a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.loopback import QuietHandler, serving_on_loopback


class ChatServer:
    """answers: one after another; a string is said, a dict is called as a tool, an int is an HTTP error, a float is
    slept before saying "Hello.". The last one repeats."""

    def __init__(self, answers: list[str | dict | int | float]) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.busiest = 0
        self._busy = 0
        self._lock = threading.Lock()

    def take(self, request: dict[str, Any]) -> str | dict | int:
        with self._lock:
            self.requests.append(request)
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            pause = 0.0
            if isinstance(answer, float):
                pause, answer = answer, "Hello."
        time.sleep(pause)
        with self._lock:
            self._busy -= 1
        return answer


@contextmanager
def serving(server: ChatServer) -> Iterator[str]:
    """The server's address while it runs."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = server.take(request)
            if isinstance(answer, int):
                self.send_error(answer)
                return
            message: dict[str, Any] = {"role": "assistant", "content": answer if isinstance(answer, str) else None}
            if isinstance(answer, dict):
                function = {"name": answer["name"], "arguments": json.dumps(answer["arguments"])}
                message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
            body = json.dumps(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 0,
                    "model": request["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
                }
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving_on_loopback(Handler) as address:
        yield address

"""The other end of W&B's wire on loopback: enough of its protocol for runs to be made, gone on with and uploaded.

The client in front of it is the real one, with the program that it starts. What the server was sent is in `runs`.
"""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from typing import Any


class WandbServer(http.server.ThreadingHTTPServer):
    """runs: rows by place, by W&B's run. A row that is sent to a place again is in `repeated`."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.runs: dict[str, dict[int, dict[str, Any]]] = {}
        self.names: dict[str, str] = {}
        self.repeated: list[int] = []
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def steps(self, run: str | None = None) -> list[int]:
        """Of one run (the last one that was made), by place, without evaluations."""
        rows = self.runs[run or list(self.runs)[-1]]
        return [rows[place]["step"] for place in sorted(rows) if not any(n.startswith("eval/") for n in rows[place])]

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Clients are killed in these tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        self._body()
        self._reply({})

    def do_POST(self) -> None:
        content = self._body()
        if self.path.endswith("/graphql"):
            question = json.loads(content)
            self._reply({"data": self._answer(question.get("operationName"), question.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            self._take(self.path.split("/")[-2], json.loads(content))
            self._reply({"exitcode": None, "limits": {}})
        else:
            self._reply({})

    def _body(self) -> bytes:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content

    def _reply(self, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _take(self, run: str, sent: dict[str, Any]) -> None:
        history = (sent.get("files") or {}).get("wandb-history.jsonl")
        if history:
            rows = self.server.runs.setdefault(run, {})
            for place, line in enumerate(history["content"], history["offset"]):
                if place in rows:
                    self.server.repeated.append(place)
                rows[place] = json.loads(line)

    def _answer(self, question: str, given: dict[str, Any]) -> dict[str, Any]:
        project = {"id": "p", "name": "project", "entity": {"id": "e", "name": "me"}}
        run = given.get("name")
        if question == "UpsertBucket":
            rows = self.server.runs.setdefault(run, {})
            bucket = {"id": run, "name": run, "displayName": run, "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": bucket | {"historyLineCount": len(rows)}, "inserted": not rows}}
        if question == "RunResumeStatus":
            rows = self.server.runs.get(run)
            if not rows:
                return {"model": project | {"bucket": None}}
            last = json.dumps(rows[max(rows)])
            bucket = {
                "id": run, "name": run, "displayName": run, "summaryMetrics": last, "config": "{}", "tags": [],
                "historyLineCount": len(rows), "logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]",
                "historyTail": json.dumps([last]), "wandbConfig": '{"t": 1}',
            }  # fmt: skip
            return {"model": project | {"bucket": bucket}}
        if question == "CreateRunFiles":
            place = f"http://127.0.0.1:{self.server.server_address[1]}/file"
            files = [{"name": name, "uploadUrl": f"{place}/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files}}
        viewer = {"id": "u", "entity": "me", "username": "me", "email": "me@localhost", "admin": False, "flags": "{}"}
        features = {"cliVersionInfo": {}, "latestLocalVersionInfo": None, "features": []}
        return {"viewer": viewer | {"teams": {"edges": []}}, "serverInfo": features}

"""A headless Chromium driven by its DevTools protocol: as much of it as tests of pages need."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. complaints: what pages wrote to the console as an error or warning, what they raised, what the content
    security policy stopped.
    """

    def __init__(self, program: str, home: Path) -> None:
        self.complaints: list[str] = []
        self._number = 0
        self._process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-extensions",
                "--disable-background-networking",
                "--remote-debugging-port=0",
                f"--user-data-dir={home}",
                "--window-size=1280,900",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port, path = _wait(lambda: _lines(home / "DevToolsActivePort"), 60, "Chromium's port")
            self._socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=64 << 20, proxy=None)
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            self._session = None
            self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self._call(f"{domain}.enable")
            self._call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        except BaseException:
            self.close()
            raise

    def open(self, address: str) -> None:
        """Go there, and wait until the page has drawn itself."""
        self._call("Page.navigate", url=address)
        self.wait("document.querySelector('main')?.getAttribute('aria-busy') === 'false'")

    def run(self, script: str) -> Any:
        """The value of an expression, promises awaited."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Until an expression is true."""

        def holds() -> bool:
            try:
                return bool(self.run(condition))
            except AssertionError:
                return False  # the page is on its way to another

        _wait(holds, seconds, condition)

    def press(self, key: str) -> None:
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        self._call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=key,
            text=text,
            windowsVirtualKeyCode={"Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Tab": 9}.get(key, 0),
        )
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def drag(self, x0: float, y0: float, x1: float, y1: float) -> None:
        for kind, x, y in (
            ("mousePressed", x0, y0),
            ("mouseMoved", (x0 + x1) / 2, y1),
            ("mouseMoved", x1, y1),
            ("mouseReleased", x1, y1),
        ):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            try:
                answer = json.loads(self._socket.recv(timeout=60))
            except ConnectionClosed as error:
                raise AssertionError(f"Chromium ended during {method}") from error
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        values = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.complaints.append(f"{details['text']} {details.get('exception', {}).get('description', '')}")
        elif event.get("method") == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(each.get("value", each.get("description"))) for each in values["args"]))
        elif event.get("method") == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")


def _lines(path: Path) -> list[str] | None:
    lines = path.read_text().splitlines() if path.exists() else []
    return lines if len(lines) == 2 else None


def _wait(ask: Any, seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := ask():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {seconds:g} s")

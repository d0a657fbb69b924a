"""Chromium without a window, spoken to over its DevTools protocol: pages as people and screen readers meet them."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.clock import LONG

MISSING = "chromium is not there: apt-get install chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0"),
)
#: seconds until the browser must be there, and until a page must
START, PATIENCE = 2 * LONG, LONG
LAPTOP = (1280, 800)


class Refused(Exception):
    """The browser could not do what it was asked for: its page was just left, for example."""


class Browser:
    """One tab."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = count(1)
        self.log: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(*LAPTOP)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have one thing done; what the page complains about meanwhile goes to ``log``."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            self._note(message)
            if message.get("id") == number:
                if "error" in message:
                    raise Refused(f"{method}: {message['error']}")
                answer: dict[str, Any] = message["result"]
                return answer

    def _note(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "Log.entryAdded":
                self.log.append(message["params"]["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.log.append(json.dumps(message["params"]["exceptionDetails"]))
            case "Network.requestWillBeSent":
                self.log.append(f"asks for {message['params']['request']['url']}")

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, wanted: bool) -> None:
        value = "dark" if wanted else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def scripts(self, allowed: bool) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def open(self, url: str) -> None:
        """Go to a page; returns when it is complete."""
        # The same document with another fragment is no navigation: leave it first, and what it still has to say.
        self.call("Page.navigate", url="about:blank")
        self.log.clear()
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def wait(self, expression: str) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            with suppress(Refused):  # the page that was asked is not the one that comes
                if self.js(expression):
                    return
            assert time.monotonic() < until, f"not within {PATIENCE} s: {expression}"
            time.sleep(0.02)

    def js(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        if key == "Enter":
            self.call("Input.dispatchKeyEvent", type="char", text="\r", key=key)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser with a profile of its own; skips where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip(MISSING)
    from websocket import create_connection

    profile = Path(tempfile.mkdtemp(prefix="gc-page-"))
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        socket = create_connection(_endpoint(process, profile), timeout=PATIENCE, suppress_origin=True)
        try:
            yield Browser(socket)
        finally:
            socket.close()
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _endpoint(process: subprocess.Popen[bytes], profile: Path) -> str:
    """Return where the first tab listens; the browser writes its port into its profile."""
    until = time.monotonic() + START
    with urllib3.PoolManager(retries=False, timeout=PATIENCE) as http:
        while True:
            assert process.poll() is None, f"chromium ended with {process.returncode}"
            assert time.monotonic() < until, "chromium did not start"
            with suppress(OSError, IndexError, StopIteration, urllib3.exceptions.HTTPError):
                port = (profile / "DevToolsActivePort").read_text().split()[0]
                tabs = json.loads(http.request("GET", f"http://127.0.0.1:{port}/json/list").data)
                return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
            time.sleep(0.05)

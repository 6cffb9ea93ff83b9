"""Headless Chromium through its debugging pipe, without a driver, a package or a port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def find() -> str | None:
    """Return the browser's command, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def opened() -> Iterator[Browser]:
    """Yield a browser for a fixture; skip its tests with a message if there is no browser."""
    command = find()
    if command is None:
        pytest.skip("no Chromium on this machine: apt install chromium to open the page")
    page = Browser(command)
    yield page
    page.close()


class Browser:
    """One page of one browser; `events` holds all of its events."""

    def __init__(self, command: str) -> None:
        self.events: list[dict] = []
        self._profile = tempfile.mkdtemp(prefix="rksp-browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads file descriptor 3 and writes 4.
        shell = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += ["--disable-background-networking", "--disable-dev-shm-usage", "--no-first-run"]
        flags += [f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, str(to_browser), str(from_browser), command, *flags],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._count = 0
        self._buffer = b""
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: object) -> dict:
        """Send a command and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, *, width: int, dark: bool = False, height: int = 900) -> None:
        """Load a file at a screen size and in a theme."""
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> object:
        """Return the value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Return the console messages, log entries and exceptions since the page was opened."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in kinds]

    def requests(self) -> list[str]:
        """Return the addresses that the page requested, except `file:` and `data:` ones."""
        asked = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        addresses = [event["params"]["request"]["url"] for event in asked]
        return [a for a in addresses if not a.startswith("data:")][1:]

    def screenshot(self, file: Path) -> None:
        """Return the whole page as PNG."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """Stop the browser and remove its profile."""
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self) -> dict:
        while b"\0" not in self._buffer:
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has gone"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

"""A real browser, driven over its own debugging protocol."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Where there is one."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Page:
    """One tab. Requests that it made, and errors that it reported, are kept."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = 60.0) -> None:
        """Return when an expression is true; fail if it is not in time."""
        deadline = time.monotonic() + timeout_s
        while not self.evaluate(script):
            assert time.monotonic() < deadline, (
                script,
                self.errors,
                self.evaluate("document.body.innerText"),
            )
            time.sleep(0.1)

    def press(self, key: str, code: int) -> None:
        """A key on the keyboard. `code`: its Windows virtual key code."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra)

    def scheme(self, name: str) -> None:
        """`dark` or `light`, as the system of the user has it."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self) -> bytes:
        """A PNG of the window."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(params["entry"]["text"])


@contextlib.contextmanager
def opened(browser: str, url: str, folder: Path, size: tuple[int, int] = (1000, 900)) -> Iterator[Page]:
    """A page in a new browser. `folder`: for its profile."""
    command = [
        browser,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        f"--window-size={size[0]},{size[1]}",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port = _port(folder / "DevToolsActivePort", process)
            target = httpx.put(f"http://127.0.0.1:{port}/json/new?about:blank", timeout=60).json()
            # What is not read at once, since a test waits for something else, is kept.
            unhurried = {"max_size": None, "max_queue": None, "ping_interval": None, "open_timeout": 60}
            with connect(target["webSocketDebuggerUrl"], **unhurried) as socket:
                page = Page(socket)
                page.call("Page.navigate", url=url)
                page.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")
                yield page
        finally:
            process.terminate()


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + 90
    while not (file.is_file() and file.read_text().strip()):
        assert process.poll() is None, "the browser has ended"
        assert time.monotonic() < deadline, "the browser does not start"
        time.sleep(0.1)
    return int(file.read_text().split()[0])

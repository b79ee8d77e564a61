"""A headless Chromium that is steered through a pipe (the Chrome DevTools Protocol), without a driver or a library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab. `errors` are the script errors and the failed requests since the page was opened."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out = os.fdopen(into, "wb"), os.fdopen(out, "rb")
        self._count, self._session = 0, ""
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **words: Any) -> Any:
        """Call a method of the protocol and return its result; events on the way are kept."""
        self._count += 1
        request = {"id": self._count, "method": method, "params": words}
        self._into.write(json.dumps(request | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        self._into.flush()
        while (answer := self._next()).get("id") != self._count:
            self._events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path, width: int, dark: bool) -> None:
        """Open a file in a window of a width, in light or dark colours, and wait until all of it is loaded."""
        self._events.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def errors(self) -> list[str]:
        wrong = ("Runtime.exceptionThrown", "Network.loadingFailed", "Log.entryAdded")
        return [json.dumps(event) for event in self._events if event.get("method") in wrong]

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for, without those of data inside the page."""
        sent = [event["params"] for event in self._events if event.get("method") == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent if not each["request"]["url"].startswith("data:")]

    def _next(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._out.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            message += byte
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with its files in the folder `profile`, and end it."""
    assert CHROMIUM is not None
    (read, into), (out, write) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    shell = ["bash", "-c", f'exec "$0" "$@" 3<&{read} 4>&{write}', CHROMIUM, *options]
    with subprocess.Popen(
        shell, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as chromium:
        os.close(read)
        os.close(write)
        try:
            yield Browser(into, out)
        finally:
            chromium.kill()

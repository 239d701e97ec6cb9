"""A headless chromium, driven over a pipe by the Chrome DevTools Protocol.

Just what is needed to open a page, ask it questions, press keys and see what it requested; every
wait has a deadline.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from time import monotonic, sleep
from typing import Any

import psutil  # type: ignore[import-untyped]

CALL_S = 20.0
END_S = 5.0


def find_browser() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One browser with one page."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        path = find_browser()
        assert path is not None, "there is no chromium"
        self._profile = tempfile.mkdtemp(prefix="holdfast-browser-")
        self.events: list[dict[str, Any]] = []
        self._number, self._rest, self._session = 0, b"", ""
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += [f"--user-data-dir={self._profile}", "--no-first-run", "--disable-extensions"]
        flags += ["--disable-background-networking", "--disable-dev-shm-usage", "about:blank"]
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", path, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._open_page()
        self.resize(width, height)

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def _open_page(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = monotonic() + CALL_S
        while (answer := self._receive(end, method)).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, end: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError(f"{what}: no answer from the browser within {CALL_S:g} s")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page, promises awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_until(self, expression: str, seconds: float = 15.0) -> float:
        """How long it took until this was true."""
        start = monotonic()
        while not self.ask(expression):
            if monotonic() - start > seconds:
                raise RuntimeError(f"not within {seconds:g} s: {expression}")
            sleep(0.02)
        return monotonic() - start

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def picture(self) -> bytes:
        """PNG of the whole page, in a window as high as it: what is not seen is not painted."""
        width, height = self.ask("[innerWidth, document.documentElement.scrollHeight]")
        self.resize(width, height)
        self.ask("new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))")
        answer = self.call("Page.captureScreenshot")
        return base64.b64decode(answer["data"])

    def problems(self) -> list[str]:
        """Errors of scripts and what the browser complained about."""
        self.ask("0")
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(str(params["entry"]["text"]))
        return found

    def requests(self) -> list[str]:
        self.ask("0")
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

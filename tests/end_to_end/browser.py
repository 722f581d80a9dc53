"""Headless Chromium, driven over pipes by the DevTools protocol: no driver, no library."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_CALL_S = 15.0
_STOP_S = 5.0
_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars"),
    *("--disable-extensions", "--disable-component-update", "--no-default-browser-check"),
)

Message = dict[str, Any]  # Any: JSON


def find_chromium() -> str | None:
    """Return where a Chromium is; None where none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class BrowserError(Exception):
    """The browser, or a script in its page, has failed."""


class Browser:
    """One browser with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        self.problems: list[str] = []  # what the page has thrown or was refused
        self._number = 0
        self._unread = b""
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # They must be its descriptors 3 and 4. As root, as in a container, it has no sandbox.
        flags = [*_FLAGS, f"--user-data-dir={profile}"]
        flags += ["--no-sandbox"] if not os.getuid() else []
        command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", program, *flags, "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session = ""
        self._session = self._attach()
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Message:  # Any: JSON
        """Have something done; return what comes of it."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + _CALL_S
        while True:
            answer = self._read(deadline_s)
            if answer.get("id") != self._number:
                self._note(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']['message']}")
            else:
                found: Message = answer["result"]
                return found

    def open(self, url: str) -> None:
        """Go to a page and wait until its scripts have run."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:  # Any: whatever the script says
        """Return the value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = 15.0) -> Any:  # Any: as above
        """Return the value of an expression as soon as it is true. Raises BrowserError."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            found = self.evaluate(script)
            if found:
                return found
            time.sleep(0.05)
        said = self.evaluate("document.body.innerText")
        raise BrowserError(f"{script} did not come true; the page says:\n{said}\n{self.problems}")

    def type(self, selector: str, text: str) -> None:
        """Type into a field, as a person does."""
        self.evaluate(f"document.querySelector({selector!r}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def click(self, selector: str) -> None:
        """Click at the middle of an element."""
        place = self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        at = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def look_like(self, *, width: int, height: int, scheme: str = "light", scale: int = 1) -> None:
        """Take the size of a window, and the colours that a person prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[scheme_feature])

    def screenshot(self, path: Path) -> None:
        """Keep a picture of what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._session = ""
            os.write(self._to, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_S)
        os.close(self._to)
        os.close(self._from)

    def _attach(self) -> str:
        targets = self.call("Target.getTargets")["targetInfos"]
        (page,) = [each["targetId"] for each in targets if each["type"] == "page"]
        found: str = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        return found

    def _read(self, deadline_s: float) -> Message:
        while b"\0" not in self._unread:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._from], [], [], left_s)[0]:
                raise BrowserError("the browser does not answer")
            piece = os.read(self._from, 1 << 16)
            if not piece:
                raise BrowserError(f"the browser has ended: {self._process.poll()}")
            self._unread += piece
        raw, _, self._unread = self._unread.partition(b"\0")
        found: Message = json.loads(raw)
        return found

    def _note(self, event: Message) -> None:
        """Keep what a person would see in red in the page's console."""
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"])[:2000])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])


@contextlib.contextmanager
def running_browser(program: str, profile: Path) -> Iterator[Browser]:
    """A browser while a block runs."""
    browser = Browser(program, profile)
    try:
        yield browser
    finally:
        browser.close()

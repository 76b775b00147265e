# SPDX-License-Identifier: BSD-3-Clause

"""A headless Chromium that tests control through a pipe; needs nothing but Python's library."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "expected Chromium, got none: the page of remat-report is not opened. Run ./setup.sh none or apt-get install chromium."
PATIENCE_S = 60


class Browser:
    """The part of the DevTools protocol that tests of one page need: https://chromedevtools.github.io/devtools-protocol/"""

    def __init__(self, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._text = b""
        self._number = 0
        self.events = []
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
        # No host resolves, whatever the page asks for.
        flags += ["--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe", f"--user-data-dir={profile}"]

        def give_pipes():  # the browser reads from 3 and writes to 4
            os.dup2(os.dup(to_browser), 103)
            os.dup2(os.dup(from_browser), 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        with open(os.path.join(profile, "stderr"), "w") as errors:
            self._process = subprocess.Popen(
                [PROGRAM, *flags, "about:blank"],
                stdout=errors,
                stderr=errors,
                close_fds=False,
                preexec_fn=give_pipes,
                env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},  # may be set for a sanitizer
            )
        os.close(to_browser)
        os.close(from_browser)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError):
            os.close(self._write)  # the browser ends when its pipe closes
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._text:
            if not select.select([self._read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"expected an answer of Chromium within {PATIENCE_S} s, got none")
            piece = os.read(self._read, 1 << 16)
            if not piece:
                raise RuntimeError("Chromium has ended: it cannot run here")
            self._text += piece
        message, self._text = self._text.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, width=1280, height=900, is_dark=False):
        """Opens a page; returns the seconds until it was painted."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = "dark" if is_dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        begin = time.monotonic()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        self.frame()
        return time.monotonic() - begin

    def frame(self):
        """Waits until changes are painted."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def evaluate(self, source):
        answer = self.call("Runtime.evaluate", expression=source, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key, shift=False):
        parameters = {"key": key, "code": key, "modifiers": 8 if shift else 0}
        if len(key) == 1:
            parameters["text"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", **parameters)
        self.call("Input.dispatchKeyEvent", type="keyUp", **parameters)
        self.frame()

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, path):
        """Takes a picture of the window."""
        data = self.call("Page.captureScreenshot")["data"]
        path.write_bytes(base64.b64decode(data))

    def requests(self):
        sent = [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def faults(self):
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event["params"] for event in self.events if event.get("method") in kinds]

"""A headless Chromium, driven over its debugging pipe; standard library only.

    with Browser() as browser:
        page = browser.page(1280, 800)
        page.open("http://127.0.0.1:9095/user/viewer/")
        page.wait("document.documentElement.dataset.state === 'ready'")
"""
import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find_program():
    """The first of PROGRAMS that is installed, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class BrowserError(Exception):
    pass


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="telar-browser-")
        self.program = find_program()
        if self.program is None:
            raise BrowserError(f"none of {', '.join(PROGRAMS)} is installed")
        self.number, self.answers, self.pages, self.buffer = 0, {}, {}, b""
        command = [self.program, "--headless", "--remote-debugging-pipe", f"--user-data-dir={self.folder}/profile", "--disable-gpu",
                   "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage",
                   "--hide-scrollbars", "--font-render-hinting=none", *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank"]
        to_read, self.commands = os.pipe()
        self.replies, to_write = os.pipe()
        # The program reads 3 and writes 4; ends above them first, so that none is overwritten by the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64) for end in (to_read, to_write)]
        actions = [(os.POSIX_SPAWN_OPEN, 1, f"{self.folder}/log", os.O_WRONLY | os.O_CREAT, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2),
                   (os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)]
        self.pid = os.posix_spawn(self.program, command, os.environ, file_actions=actions, setpgroup=0)
        for end in (to_read, to_write, *ends):
            os.close(end)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.commands)  # It ends when nobody commands any more.
        deadline = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.02)
        os.close(self.replies)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # Its helpers.
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, session=None, timeout=30, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.commands, data):]
        deadline = time.monotonic() + timeout
        while self.number not in self.answers:
            self.read(deadline, method)
        answer = self.answers.pop(self.number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def read(self, deadline, what):
        ready, _, _ = select.select([self.replies], [], [], max(0, deadline - time.monotonic()))
        data = os.read(self.replies, 1 << 20) if ready else b""
        if not data:
            with open(f"{self.folder}/log", errors="replace") as log:
                raise BrowserError(f"{what}: {'the browser ended' if ready else 'no answer'}:\n{log.read()[-2000:]}")
        *messages, self.buffer = (self.buffer + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].heard(message["method"], message["params"])

    def page(self, width, height, scale=1, dark=True):
        return Page(self, width, height, scale, dark)


class Page:
    def __init__(self, browser, width, height, scale, dark):
        self.browser, self.errors, self.size, self.scale = browser, [], (width, height), scale
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def resize(self, height):
        self.call("Emulation.setDeviceMetricsOverride", width=self.size[0], height=height, deviceScaleFactor=self.scale, mobile=False)

    def heard(self, method, parameters):
        """Keeps what a page should never say."""
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def evaluate(self, expression):
        """The value of a JavaScript expression, awaited if it is a promise."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise BrowserError(f"{expression[:200]}: {details.get('exception', {}).get('description', details['text'])}")
        return result["result"].get("value")

    def wait(self, condition, timeout=30):
        deadline = time.monotonic() + timeout
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise BrowserError(f"not within {timeout} s: {condition}; the page says: {self.evaluate('document.body.innerText')[:2000]}")
            time.sleep(0.05)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start, end, y):
        self.mouse("mousePressed", start, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", (start + end) / 2, y, button="left", buttons=1)
        self.mouse("mouseMoved", end, y, button="left", buttons=1)
        self.mouse("mouseReleased", end, y, button="left", clickCount=1)

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def screenshot(self, path):
        """The whole page, however long."""
        self.resize(self.evaluate("document.documentElement.scrollHeight"))
        self.evaluate("new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 100))")
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

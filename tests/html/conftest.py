"""A headless Chromium, driven over a pipe: no driver and no package is needed for that."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from qassay.cli.main import cli
from qassay.testing.device_cases import write_linear
from qassay.testing.faulty_devices import faults, random_linear, run

sys.path.insert(0, str(Path(__file__).parent))
SECONDS = 120
WIRE = """
import fcntl, os, sys
first, second = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(first, 3)
os.dup2(second, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One Chromium with one page; speaks the DevTools protocol, messages end with a NUL."""

    def __init__(self, program: str, profile: Path) -> None:
        into, self._out = os.pipe()
        self._in, out = os.pipe()

        self._process = subprocess.Popen(
            [sys.executable, "-c", WIRE, str(into), str(out),
             program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
             "--disable-component-update", "--disable-default-apps", "--hide-scrollbars",
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(into, out), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(into)
        os.close(out)
        os.set_blocking(self._in, False)
        self._rest = b""
        self._next = 0
        self._session = None
        self.events = []
        target = next(
            one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page"
        )["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """Send a command and return what it answers; events that come first are kept."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        raw = json.dumps(message).encode() + b"\0"
        while raw:
            raw = raw[os.write(self._out, raw) :]
        while True:
            answer = self._message()
            if answer.get("id") == self._next:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _message(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            assert time.monotonic() < end, "Chromium does not answer"
            assert self._process.poll() is None, "Chromium has ended"
            try:
                self._rest += os.read(self._in, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def run(self, script):
        """Return the value of an expression in the page; a promise is waited for."""
        done = self.ask("Runtime.evaluate", expression=script, awaitPromise=True,
                        returnByValue=True)  # fmt: skip
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition):
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.05)

    def open(self, path, *, width=1280, height=900, dark=False):
        """Open a file and wait until its script is done."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.ask("Page.navigate", url=Path(path).resolve().as_uri())
        self.wait("document.readyState === 'complete' && document.documentElement.dataset.ready")

    def complaints(self):
        """Return everything the console, the log and the policy have said."""
        self.run("1")  # what was said before has arrived by then
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [one for one in self.events if one.get("method") in kinds]

    def requests(self):
        """Return every address that was asked for."""
        return [
            one["params"]["request"]["url"]
            for one in self.events
            if one.get("method") == "Network.requestWillBeSent"
        ]

    def picture(self, path, *, whole=True):
        """Write a PNG of the page."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def press(self, selector):
        """Click an element where it is, as a mouse does."""
        spot = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1],
                     button="left", clickCount=1)  # fmt: skip

    def close(self):
        """End the browser."""
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


def chromium():
    """Return the program that `CHROME_PATH` names, else one that is installed, else None."""
    named = os.environ.get("CHROME_PATH")
    names = ("chromium", "chromium-headless-shell", "google-chrome")
    return named or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = chromium()
    if program is None:
        pytest.skip("no Chromium")
    one = Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture
def page(tmp_path):
    """Run a command and return the page that it writes."""

    def call(*args, code=None):
        path = tmp_path / "page.html"
        done = CliRunner().invoke(cli, [*map(str, args), "-f", "html", "-o", str(path)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        assert path.exists(), done.output
        if code is not None:
            assert done.exit_code == code
        return path

    return call


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    from html_models import models

    return models(tmp_path_factory.mktemp("models"), 3)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    from html_models import HOSTILE, models

    return models(tmp_path_factory.mktemp("hostile"), 2, HOSTILE)


@pytest.fixture(scope="session")
def dumps(tmp_path_factory):
    """Arguments of `diagnose` for dumps of a model, one tensor of which is bad."""
    folder = tmp_path_factory.mktemp("dumps")
    rng = np.random.default_rng(3)
    right = {f"layer_{at}/Add_f32": rng.normal(0, 1, (4, 64)).astype("f4") for at in range(6)}
    wrong = {name: values + np.float32(0.001) for name, values in right.items()}
    wrong["layer_4/Add_f32"][:, 3] = np.nan
    np.savez(folder / "right.npz", **right)
    np.savez(folder / "wrong.npz", **wrong)
    return ("diagnose", "--float", folder / "right.npz", "--device", folder / "wrong.npz")


@pytest.fixture(scope="session")
def device(tmp_path_factory):
    """Arguments of `diagnose` for a Linear whose device deals rows in another order."""
    folder = tmp_path_factory.mktemp("device")
    linear = random_linear(1, 64, 128, 32)
    write_linear(folder / "w.npz", linear)
    x = np.random.default_rng(2).normal(0, 1, (8, 128)).astype(np.float32)
    known = {one.name: one for one in faults(linear, random_linear(2, 64, 128, 32))}
    y = run(known["deal16 of y"].plant(linear), x, "dev")
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "y.npz", y=y)
    return ("diagnose", "--weights", folder / "w.npz", "--inputs", folder / "x.npz",
            "--device", folder / "y.npz", "--no-pairs")  # fmt: skip

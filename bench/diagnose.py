"""How long `qassay diagnose` takes for one Linear with the inputs of `qassay probe`, on one core.

python bench/diagnose.py             # 2048 x 2048, the bar is 10 seconds
python bench/diagnose.py --smoke     # 64 x 256: not judged

Outputs are simulated: sound ones, some of each kind of planted fault, and some that no known fault
explains. Each is diagnosed by a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from qassay.testing import faulty_devices as fd
from qassay.testing.device_cases import write_linear

from timing import pin, verdict

BAR = 10.0
"""Seconds: the one absolute time that is promised here, so this is no test."""


def cases(linear: fd.Linear, other: fd.Linear) -> list[tuple[str, fd.Device]]:
    """Return devices: a sound one, the first fault of every kind, and those without a name."""
    found = [("sound", fd.Device(linear))]
    kinds = set()
    for fault in fd.faults(linear, other):
        if fault.kind not in kinds:
            kinds.add(fault.kind)
            found.append((fault.name, fault.plant(linear)))
    found += [(fault.name, fault.plant(linear)) for fault in fd.nameless(linear)]
    return found


def main() -> int:
    """Run it; the exit code tells whether the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    asked = parser.parse_args()
    pin(1)
    n, k, group = (64, 256, 64) if asked.smoke else (2048, 2048, 128)
    linear, other = (fd.random_linear(seed, n, k, group) for seed in (1, 2))
    slowest, slowest_of = 0.0, ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_linear(folder / "w.npz", linear)
        qassay = [sys.executable, "-m", "qassay"]
        probe = [*qassay, "probe", "w.npz", "-o", "probes.npz", "-q"]
        subprocess.run(probe, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with np.load(folder / "probes.npz") as arrays:
            x = arrays["prefill"][0]
        np.savez(folder / "x.npz", x=x)
        chosen = cases(linear, other)[:: 8 if asked.smoke else 1]
        for title, device in chosen:
            np.savez(folder / "y.npz", y=fd.run(device, x, "dev", 3))
            started = time.perf_counter()
            command = [*qassay, "diagnose", "--weights", "w.npz", "--inputs", "x.npz"]
            done = subprocess.run(
                [*command, "--device", "y.npz", "-q"], cwd=folder, capture_output=True, check=False
            )
            took = time.perf_counter() - started
            if done.returncode not in (0, 1):
                raise SystemExit(f"{title}: ended with {done.returncode}")
            print(f"     {title:<58} {took:8.2f}", flush=True)
            if took > slowest:
                slowest, slowest_of = took, title
    what = f"diagnose {n} x {k}, seconds ({slowest_of})"
    return 0 if verdict(what, slowest, None if asked.smoke else BAR) else 1


if __name__ == "__main__":
    raise SystemExit(main())

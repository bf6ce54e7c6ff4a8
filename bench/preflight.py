"""How fast `qassay.check(..., to=...)` is on a float file, as ratios measured in one run.

python bench/preflight.py              # a file of 1 GB of float32 is made in a temporary folder
python bench/preflight.py --mb 64      # a smoke test
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import qassay
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

from timing import interleaved, medians, seconds, verdict

ROWS = COLUMNS = 4096


def make(path: Path, megabytes: int) -> Path:
    """Write a file of normal float32 weights (sd 0.02)."""
    rng = np.random.default_rng(0)
    tensors = [
        SafeTensor(
            f"blk.{number}.ffn_up.weight",
            "F32",
            [ROWS, COLUMNS],
            (rng.standard_normal((ROWS, COLUMNS), np.float32) * np.float32(0.02)).tobytes(),
        )
        for number in range(max(1, (megabytes << 20) // (4 * ROWS * COLUMNS)))
    ]
    path.write_bytes(write_safetensors(tensors))
    return path


def read(path: Path) -> None:
    """Read every weight of the file with `ndarray.max()`."""
    with qassay.open(path) as model:
        for tensor in model.tensors.values():
            tensor.raw().view("<f4").max()


def main() -> int:
    """Measure; exit 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder) / "floats.safetensors", given.mb)
        check = partial(qassay.check, path, jobs=1)
        jobs = {
            "read": partial(seconds, partial(read, path)),
            "audit": partial(seconds, check),
            "Q8_0": partial(seconds, partial(check, to="Q8_0")),
            "all": partial(seconds, partial(check, to="Q8_0,Q4_0,Q4_K,Q6_K,F16")),
        }
        times = medians(interleaved(given.runs, jobs))
    for name in ("audit", "all"):
        print(f"     {name}: {times[name] / times['read']:.2f} x reading", flush=True)
    met = verdict(
        "preflight for Q8_0 / ndarray.max(), one thread", times["Q8_0"] / times["read"], 3
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

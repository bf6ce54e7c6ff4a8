"""How fast `qassay.check(..., to=...)` is on a float file, as ratios measured in one run.

python bench/preflight.py              # files of 1 GB of F32, F16 and BF16, one after the other
python bench/preflight.py --smoke      # the same on 4 MB: not judged

What it is compared with is reading every weight with `ndarray.max()` on one thread. Halves are
read as 16-bit integers, for NumPy compares floats of 16 bits many times slower than it reads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import qassay
from qassay.encodings import by_id
from qassay.runtimes.registry import engine
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

from timing import interleaved, paired, pin, seconds, verdict

THREADS = 2
BAR = 3.0
COLUMNS = 4096
TENSOR = 64 << 20
"""Bytes a tensor, at most."""
READ_AS = {"F32": "<f4", "F16": "<u2", "BF16": "<u2"}
TARGETS = ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q8_0,Q4_0,Q4_K,Q6_K")


def make(path: Path, dtype: str, nbytes: int) -> Path:
    """Write a file of normal weights (sd 0.02), the same ones in every tensor."""
    size = by_id(dtype).block_bytes * COLUMNS
    rows = min(nbytes, TENSOR) // size
    weights = np.random.default_rng(0).standard_normal((rows, COLUMNS), np.float32)
    weights *= np.float32(0.02)
    if dtype != "F32":
        weights = engine("ggml").quantize(weights, dtype)
    tensors = [
        SafeTensor(f"blk.{number}.ffn_up.weight", dtype, [rows, COLUMNS], weights.tobytes())
        for number in range(nbytes // (rows * size))
    ]
    path.write_bytes(write_safetensors(tensors))
    return path


def read(path: Path, dtype: str) -> None:
    """Read every weight of the file with `ndarray.max()`."""
    with qassay.open(path) as model:
        for tensor in model.tensors.values():
            tensor.raw().view(READ_AS[dtype]).max()


def measure(path: Path, dtype: str, runs: int, *, judged: bool) -> list[bool]:
    """Print what a check of one file takes; return which bars are met."""
    jobs = {
        "read": partial(seconds, partial(read, path, dtype)),
        "audit": partial(seconds, partial(qassay.check, path, jobs=1)),
    }
    for threads in (1, THREADS):
        for to in TARGETS:
            check = partial(qassay.check, path, jobs=threads, to=to)
            jobs[f"{to}, {threads} threads"] = partial(seconds, check)
    times = interleaved(runs, jobs)
    met = []
    for name in jobs:
        if name != "read":
            ratio = paired(times, name, "read")
            barred = judged and name.startswith("Q8_0, ")
            told = f"{dtype} file, {name} / ndarray.max()"
            met.append(verdict(told, ratio, BAR if barred else None))
    return met


def main() -> int:
    """Measure; exit 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1024, help="size of each file")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--sources", nargs="*", choices=READ_AS, default=list(READ_AS))
    parser.add_argument("--smoke", action="store_true", help="4 MB, one round, nothing is judged")
    given = parser.parse_args()
    megabytes, runs = (4, 1) if given.smoke else (given.mb, given.runs)
    pin(THREADS)
    met = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in given.sources:
            path = make(Path(folder) / "floats.safetensors", dtype, megabytes << 20)
            met += measure(path, dtype, runs, judged=not given.smoke)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())

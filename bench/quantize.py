"""How fast ggml's quantizers are against libgguf, as ratios measured in one run.

python bench/quantize.py                       # all types, 105 M weights, two threads each
python bench/quantize.py --types Q4_K Q8_0 --scale 8    # on fewer weights: not judged
python bench/quantize.py --smoke               # two types on a few rows: not judged
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from importlib import import_module

THREADS = 2
os.environ["LIBGGUF_NUM_THREADS"] = str(THREADS)

import gguf  # noqa: E402
import libgguf  # noqa: E402
import numpy as np  # noqa: E402

from timing import interleaved, medians, paired, pin, seconds, verdict, wall  # noqa: E402

WIDTH = 2560
ROWS = 40_960
MODULES = {
    "Q4_K": ("affine", 6.0, 6.0),
    "Q5_K": ("affine", 6.0, 6.0),
    "Q2_K": ("affine", 6.0, 6.0),
    "Q6_K": ("symmetric", 4.0, 4.0),
    "Q3_K": ("symmetric", 1.0, 4.0),
    "Q8_0": ("legacy", 2.0, None),
    "Q4_0": ("searched", 0.9, 4.0),
    "Q4_1": ("searched", 0.9, 4.0),
    "Q5_0": ("searched", 0.9, 4.0),
    "Q5_1": ("searched", 0.9, 4.0),
    "MXFP4": ("legacy", 2.0, None),
}
"""By type: module, bar without importance, bar with importance."""

FIRST_USE = """
import sys, time
import numpy as np
from importlib import import_module
module = import_module("qassay.kernels.quantize_fast_" + sys.argv[1])
x = np.ones((2, 512), np.float32)
given = np.ones(512, np.float32) if sys.argv[3] == "weighted" else None
getattr(module, sys.argv[2].lower())(x, given)
"""


def processor(command: list[str], cache: str) -> tuple[float, float]:
    """Return the processor seconds and the wall seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = wall(command, {"NUMBA_CACHE_DIR": cache})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, took


def first_use(name: str, weighted: bool) -> bool:
    """Measure a process that quantizes one row, with an empty cache and with a full one.

    Compiling uses one thread, so processor time is what it takes on a machine of one's own.
    """
    command = [sys.executable, "-c", FIRST_USE, MODULES[name][0], name]
    command.append("weighted" if weighted else "plain")
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = processor(command, cache), processor(command, cache)
    kind = f"{name} with importance" if weighted else name
    print(f"     {kind}: first process {cold[1]:.2f} s, second {warm[1]:.2f} s of wall time")
    return verdict(f"{kind}: compiling, processor seconds", cold[0] - warm[0], 5)


def speed(name: str, x: np.ndarray, importance: np.ndarray | None, runs: int) -> float:
    """Print Mweights/s of both programs; return ours as a multiple of libgguf's."""
    kind = gguf.GGMLQuantizationType[name]
    ours = getattr(import_module(f"qassay.kernels.quantize_fast_{MODULES[name][0]}"), name.lower())
    few = x[:64]
    theirs = libgguf.quantize_rows(few, kind, imatrix=importance).view(np.uint8)
    if not np.array_equal(ours(few, importance), theirs.reshape(len(few), -1)):
        raise SystemExit(f"{name}: the bytes differ")
    times = interleaved(
        runs,
        {
            "libgguf": lambda: seconds(lambda: libgguf.quantize_rows(x, kind, imatrix=importance)),
            "qassay": lambda: seconds(lambda: ours(x, importance, jobs=THREADS)),
        },
    )
    took = medians(times)
    million = x.size / 1e6
    rates = ", ".join(f"{who} {million / took[who]:.0f}" for who in took)
    print(f"     {name}{' with importance' if importance is not None else ''}: {rates} Mweights/s")
    return paired(times, "libgguf", "qassay")


def main() -> int:
    """Run what is asked; return 1 if a bar is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--types", nargs="*", choices=MODULES, default=list(MODULES))
    options.add_argument("--scale", type=int, default=1, help="divide the weights by this")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--skip-importance", action="store_true")
    options.add_argument("--skip-compile", action="store_true")
    options.add_argument("--skip-speed", action="store_true")
    options.add_argument("--smoke", action="store_true", help="Q8_0 and Q4_K, few rows, one round")
    given = options.parse_args()
    if given.smoke:
        given.types, given.scale, given.runs = ["Q8_0", "Q4_K"], ROWS // 64, 1
        given.skip_compile = True
    judged = given.scale == 1
    pin(THREADS)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS // given.scale, WIDTH), np.float32) * np.float32(0.02)
    importance = rng.gamma(0.5, 1.0, WIDTH).astype(np.float32)
    met = []
    for name in given.types:
        _, bar, weighted_bar = MODULES[name]
        weighted = weighted_bar is not None and not given.skip_importance
        if not given.skip_speed:
            ratio = speed(name, x, None, given.runs)
            met.append(verdict(name, ratio, bar if judged else None, at_least=True))
        if not given.skip_speed and weighted:
            # A quarter of the weights: libgguf needs half a minute for the whole.
            ratio = speed(name, x[: len(x) // 4], importance, given.runs)
            weighted_name = f"{name} with importance"
            limit = weighted_bar if judged else None
            met.append(verdict(weighted_name, ratio, limit, at_least=True))
        if not given.skip_compile:
            met.append(first_use(name, False))
        if not given.skip_compile and weighted:
            met.append(first_use(name, True))
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())

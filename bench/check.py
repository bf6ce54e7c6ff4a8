"""How fast `qassay check` is, as ratios measured in one run.

python bench/check.py                  # 4 GB and 1 GB files are made in bench/data
python bench/check.py --scale 16       # the same on 256 MB and 64 MB: a smoke test, not judged
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import qassay
from qassay.encodings import BlockEncoding, by_id
from qassay.kernels.chunk import Front
from qassay.kernels.collect import make_collector
from qassay.kernels.geometry import geometry_of
from qassay.kernels.select import FAST
from qassay.run.options import CHUNK_BYTES
from qassay.run.plan import chunks_of

from models import make_gguf
from timing import interleaved, medians, peak_anonymous, seconds, verdict, wall

GB = 1 << 30
MB = 1 << 20
PYTHON = sys.executable
CHECK = [PYTHON, "-m", "qassay", "check", "--no-progress", "--jobs", "2"]
FLOOR = {"ggml.q8_0": 0.35, "ggml.q4_k": 0.35, "ggml.q6_k": 0.35, "ggml.q4_0": 0.25, "f16": 0.25}


def label(nbytes: int) -> str:
    """Return a size as the lines below name it: `4 GB`, `256 MB`."""
    return f"{nbytes // GB} GB" if nbytes % GB == 0 else f"{nbytes / MB:.0f} MB"


@dataclass(frozen=True)
class Bench:
    """How large the files are, and what is printed of a ratio.

    Attributes:
        scale: What all sizes are divided by. The bars are for 1; else nothing is judged.
        runs: Rounds of measurements.
    """

    scale: int = 1
    runs: int = 7

    def size(self, nbytes: int) -> str:
        """Return the size of a file that has `nbytes` at full scale."""
        return label(nbytes // self.scale)

    def ratio(self, name: str, value: float, bar: float, *, at_least: bool = False) -> bool:
        """Print one measured ratio, beside its bar at full scale; return whether that is met."""
        if self.scale == 1:
            return verdict(name, value, bar, at_least=at_least)
        print(f"     {name:<58} {value:8.2f}", flush=True)
        return True

    def close(self, met: list[bool]) -> int:
        """Print how many bars are met, if they are judged; return the exit code."""
        if self.scale != 1:
            print("     the bars are for full scale: nothing was judged")
            return 0
        print(f"{sum(met)} of {len(met)} bars met ({statistics.fmean(met):.0%})")
        return 0 if all(met) else 1


def processes(bench: Bench, large: Path, small: Path) -> list[bool]:
    """Measure whole commands."""
    fast = {"QASSAY_KERNELS": "fast"}
    size = bench.size(4 * GB)
    check, full, cat = f"check {size}", f"check {size}, --stats full", f"cat {size}"
    times = interleaved(
        bench.runs,
        {
            check: lambda: wall([*CHECK, str(large)]),
            full: lambda: wall([*CHECK, "--stats", "full", str(large)]),
            "check 4 MB": lambda: wall([*CHECK, str(small)]),
            "check 4 MB, fast kernels": lambda: wall([*CHECK, str(small)], fast),
            cat: lambda: wall(["cat", str(large)]),
            "import numpy": lambda: wall([PYTHON, "-c", "import numpy"]),
        },
    )
    took = medians(times)
    for name, value in took.items():
        spread = f"{min(times[name]):.3f} to {max(times[name]):.3f}"
        print(f"     {name:<30} median {value:7.3f} s   ({spread})", flush=True)
    base = took["check 4 MB"]
    return [
        bench.ratio(f"({check} - check 4 MB) / {cat}", (took[check] - base) / took[cat], 2.5),
        bench.ratio("the same with --stats full", (took[full] - base) / took[cat], 8),
        bench.ratio(
            "check 4 MB with fast kernels / import numpy",
            took["check 4 MB, fast kernels"] / took["import numpy"],
            7,
        ),
    ]


def audit_all(collector: Any, pieces: list[tuple[np.ndarray, int]]) -> None:
    """Collect every chunk of a tensor."""
    for piece, start in pieces:
        collector.collect(piece, start)


def kernels(bench: Bench, large: Path) -> list[bool]:
    """Measure the audit of one tensor of each type against ndarray.max(), one thread each."""
    met = []
    with qassay.open(large) as model:
        seen = set()
        for tensor in model.tensors.values():
            if tensor.encoding in seen:
                continue
            seen.add(tensor.encoding)
            encoding = by_id(tensor.encoding)
            geometry = geometry_of(tensor.stored, encoding)
            collector = make_collector(encoding, geometry, FAST, Front(), all_codes=False)
            raw = np.array(tensor.raw())  # out of the page tables' way, for both sides alike
            size = encoding.block_bytes
            pieces = [
                (raw[c.start * size : (c.start + c.units) * size], c.start)
                for c in chunks_of(0, geometry, CHUNK_BYTES)
            ]

            times = interleaved(
                3 * bench.runs,
                {
                    "audit": partial(seconds, partial(audit_all, collector, pieces)),
                    "max": partial(seconds, raw.max),
                },
            )
            # Pair by pair, so that a machine whose speed drifts does not decide.
            pairs = zip(times["max"], times["audit"], strict=True)
            ratio = statistics.median(reading / audit for reading, audit in pairs)
            name = f"audit kernel, {tensor.encoding}: speed / ndarray.max()"
            met.append(bench.ratio(name, ratio, FLOOR[tensor.encoding], at_least=True))
    return met


def memory(bench: Bench, files: dict[str, Path]) -> list[bool]:
    """Measure the peak of anonymous memory."""
    return [
        bench.ratio(
            f"peak anonymous memory at {name}, MB", peak_anonymous([*CHECK, str(path)]) / MB, 200
        )
        for name, path in files.items()
    ]


def cold(bench: Bench, large: Path) -> None:
    """Print the first run with no kernel compiled yet."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"NUMBA_CACHE_DIR": folder}
        first = f"first run on {bench.size(4 * GB)} with a cold kernel cache"
        for name in (first, "second run with that cache"):
            print(f"     {name:<48}{wall([*CHECK, str(large)], env):7.3f} s")


def against_gguf(bench: Bench, large: Path) -> list[bool]:
    """Compare with decoding everything through gguf-py, per byte, on up to 256 MB of Q8_0."""
    limit = 256 * MB // bench.scale
    with qassay.open(large) as model:
        tensor = next(iter(model.tensors.values()))
        raw = np.array(tensor.raw()[: limit // 4352 * 4352]).reshape(-1, 4352)
        kind = gguf.GGMLQuantizationType.Q8_0

        def theirs() -> None:
            np.isfinite(gguf.quants.dequantize(raw, kind)).all()

        encoding = by_id(tensor.encoding)
        assert issubclass(encoding, BlockEncoding)
        geometry = geometry_of(tensor.stored, encoding)
        collector = make_collector(encoding, geometry, FAST, Front(), all_codes=False)
        times = medians(
            interleaved(
                3,
                {
                    "theirs": lambda: seconds(theirs),
                    "ours": lambda: seconds(lambda: collector.collect(raw.reshape(-1), 0)),
                },
            )
        )
    return [
        bench.ratio(
            "gguf-py dequantize everything / our audit, per byte",
            times["theirs"] / times["ours"], 30, at_least=True,
        )
    ]  # fmt: skip


def main() -> int:
    """Run everything; exit 1 when a bar is missed at full scale."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--scale", type=int, default=1, help="divide all sizes by this")
    options.add_argument("--runs", type=int, default=7)
    options.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    chosen = options.parse_args()
    bench = Bench(chosen.scale, chosen.runs)
    large, middle = (
        make_gguf(chosen.data / f"{nbytes // bench.scale // MB}mb.gguf", nbytes // bench.scale)
        for nbytes in (4 * GB, GB)
    )
    small = make_gguf(chosen.data / "4mb.gguf", 4 * MB)
    met = processes(bench, large, small)
    met += kernels(bench, large)
    met += memory(bench, {bench.size(GB): middle, bench.size(4 * GB): large})
    cold(bench, large)
    met += against_gguf(bench, large)
    return bench.close(met)


if __name__ == "__main__":
    sys.exit(main())

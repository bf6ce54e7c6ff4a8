"""How fast `qassay check` is, as ratios measured in one run.

python bench/check.py                  # 4 GB and 1 GB files are made in bench/data
python bench/check.py --scale 16       # the same on 256 MB: a smoke test, bars not judged
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import qassay
from models import make_gguf
from qassay.encodings import BlockEncoding, by_id
from qassay.kernels.chunk import Front
from qassay.kernels.collect import make_collector
from qassay.kernels.geometry import geometry_of
from qassay.kernels.select import FAST
from qassay.run.options import CHUNK_BYTES
from qassay.run.plan import chunks_of
from timing import interleaved, medians, peak_anonymous, seconds, verdict, wall

GB = 1 << 30
MB = 1 << 20
PYTHON = sys.executable
CHECK = [PYTHON, "-m", "qassay", "check", "--no-progress", "--jobs", "2"]
FLOOR = {"ggml.q8_0": 0.35, "ggml.q4_k": 0.35, "ggml.q6_k": 0.35, "ggml.q4_0": 0.25, "f16": 0.25}


def processes(large: Path, small: Path, runs: int) -> list[bool]:
    """Measure whole commands."""
    fast = {"QASSAY_KERNELS": "fast"}
    times = interleaved(
        runs,
        {
            "check 4 GB": lambda: wall([*CHECK, str(large)]),
            "check 4 GB, --stats full": lambda: wall([*CHECK, "--stats", "full", str(large)]),
            "check 4 MB": lambda: wall([*CHECK, str(small)]),
            "check 4 MB, fast kernels": lambda: wall([*CHECK, str(small)], fast),
            "cat 4 GB": lambda: wall(["cat", str(large)]),
            "import numpy": lambda: wall([PYTHON, "-c", "import numpy"]),
        },
    )
    took = medians(times)
    for name, value in took.items():
        spread = f"{min(times[name]):.3f} to {max(times[name]):.3f}"
        print(f"     {name:<30} median {value:7.3f} s   ({spread})", flush=True)
    cat, base = took["cat 4 GB"], took["check 4 MB"]
    return [
        verdict("(check 4 GB - check 4 MB) / cat 4 GB", (took["check 4 GB"] - base) / cat, 2.5),
        verdict("the same with --stats full", (took["check 4 GB, --stats full"] - base) / cat, 8),
        verdict(
            "check 4 MB with fast kernels / import numpy",
            took["check 4 MB, fast kernels"] / took["import numpy"],
            7,
        ),
    ]


def audit_all(collector: Any, pieces: list[tuple[np.ndarray, int]]) -> None:
    """Collect every chunk of a tensor."""
    for piece, start in pieces:
        collector.collect(piece, start)


def kernels(large: Path, runs: int) -> list[bool]:
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

            times = medians(
                interleaved(
                    runs,
                    {
                        "audit": partial(seconds, partial(audit_all, collector, pieces)),
                        "max": partial(seconds, raw.max),
                    },
                )
            )
            name = f"audit kernel, {tensor.encoding}: speed / ndarray.max()"
            met.append(
                verdict(name, times["max"] / times["audit"], FLOOR[tensor.encoding], at_least=True)
            )
    return met


def memory(files: dict[str, Path]) -> list[bool]:
    """Measure the peak of anonymous memory."""
    return [
        verdict(
            f"peak anonymous memory at {name}, MB", peak_anonymous([*CHECK, str(path)]) / MB, 200
        )
        for name, path in files.items()
    ]


def cold(large: Path) -> None:
    """Print the first run with no kernel compiled yet."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"NUMBA_CACHE_DIR": folder}
        for name in ("first run on 4 GB with a cold kernel cache", "second run with that cache"):
            print(f"     {name:<48}{wall([*CHECK, str(large)], env):7.3f} s")


def against_gguf(large: Path, limit: int) -> list[bool]:
    """Compare with decoding everything through gguf-py, per byte, on `limit` bytes of Q8_0."""
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
        verdict(
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
    scale = chosen.scale
    large = make_gguf(chosen.data / f"{4096 // scale}mb.gguf", 4 * GB // scale)
    middle = make_gguf(chosen.data / f"{1024 // scale}mb.gguf", GB // scale)
    small = make_gguf(chosen.data / "4mb.gguf", 4 * MB)
    met = processes(large, small, chosen.runs)
    met += kernels(large, chosen.runs)
    met += memory({"1 GB": middle, "4 GB": large})
    cold(large)
    met += against_gguf(large, 256 * MB // scale)
    print(f"{sum(met)} of {len(met)} bars met ({statistics.fmean(met):.0%})")
    return 0 if all(met) or scale != 1 else 1


if __name__ == "__main__":
    sys.exit(main())

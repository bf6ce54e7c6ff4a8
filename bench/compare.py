"""How fast `qassay compare` measures a quantized model, as a ratio to gguf-py and NumPy.

python bench/compare.py               # a Q4_K file of 1 GB and its f32 source of 7 GB
python bench/compare.py --scale 16    # on a sixteenth of that
python bench/compare.py --smoke       # a few rows: not judged

The other side is a process that decodes each tensor with gguf-py and takes RMSE, largest error,
SNR, cosine and the RMSE of each row with NumPy. The bar is set against the plain way, a tensor at a
time; the same in pieces that fit the processor's cache is shown beside it: that is faster, and
nobody writes it who only wants to know. All sides are whole processes, measured in turn on all
tensors, with both files in the page cache.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

from timing import interleaved, paired, peak_anonymous, verdict, wall

COLUMNS = 4096
PIECE = 512
"""Rows of a piece: faster than fewer, and than more."""
BAR = 20.0
MEMORY = 200.0
"""MB that the process may take, besides the pages of the files themselves."""
OURS, THEIRS, PIECES = "qassay compare", "gguf-py and NumPy", "the same in pieces"


def write(folder: Path, rows: int, tensors: int) -> tuple[Path, Path]:
    """Write a float model, and a copy of it in Q4_K, both of random weights."""
    from qassay.kernels.quantize_fast_affine import q4_k

    rng = np.random.default_rng(0)
    one, two = folder / "source.gguf", folder / "q4_k.gguf"
    source, target = gguf.GGUFWriter(one, "llama"), gguf.GGUFWriter(two, "llama")
    weights = (rng.standard_normal((rows, COLUMNS), np.float32) * 0.02).astype(np.float32)
    raw = q4_k(weights, None).reshape(rows, -1)
    kind = gguf.GGMLQuantizationType.Q4_K
    for at in range(tensors):
        source.add_tensor(f"blk.{at}.ffn_up.weight", weights)
        target.add_tensor(f"blk.{at}.ffn_up.weight", raw, raw_dtype=kind)
    for writer in (source, target):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return one, two


def by_numpy(one: Path, two: Path, piece: int | None) -> None:
    """Measure every tensor with gguf-py and NumPy, so many rows at a time or all."""
    source = {t.name: t for t in gguf.GGUFReader(one).tensors}
    for tensor in gguf.GGUFReader(two).tensors:
        floats = source[tensor.name].data.reshape(-1, COLUMNS)
        sums, largest = np.zeros(4), 0.0
        rows = np.empty(floats.shape[0])
        step = piece or floats.shape[0]
        for start in range(0, floats.shape[0], step):
            old = floats[start : start + step]
            new = gguf.quants.dequantize(tensor.data[start : start + step], tensor.tensor_type)
            error = new - old
            square = (error * error).sum(axis=1, dtype=np.float64)
            rows[start : start + step] = np.sqrt(square / COLUMNS)
            sums += (
                square.sum(),
                np.sum(old * old, dtype=np.float64),
                np.sum(new * new, dtype=np.float64),
                np.sum(old * new, dtype=np.float64),
            )
            largest = max(largest, float(np.abs(error).max()))
        rmse = math.sqrt(sums[0] / floats.size)
        snr = 10 * math.log10(sums[1] / sums[0])
        cosine = sums[3] / math.sqrt(sums[1] * sums[2])
        print(tensor.name, rmse, largest, snr, cosine, rows.max())


def main() -> int:
    """Run it; the exit code tells whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--numpy", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--piece", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.numpy:
        by_numpy(*args.numpy, args.piece)
        return 0
    rows, tensors = (512, 2) if args.smoke else (14_336 // 2, max(1, 64 // args.scale))
    weights = rows * COLUMNS * tensors
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        one, two = write(Path(name), rows, tensors)
        if hasattr(os, "sync"):
            os.sync()  # or the disk is still written to while the first side is timed
        ours = [sys.executable, "-m", "qassay", "compare", str(one), str(two), "-q"]
        theirs = [sys.executable, __file__, "--numpy", str(one), str(two)]
        wall(ours)  # compiles, and brings both files into the page cache
        memory = peak_anonymous(ours) / 1e6
        jobs = {
            OURS: lambda: wall(ours),
            THEIRS: lambda: wall(theirs),
            PIECES: lambda: wall([*theirs, "--piece", str(PIECE)]),
        }
        times = interleaved(1 if args.smoke else args.runs, jobs)
    for side, took in times.items():
        speed = weights / statistics.median(took) / 1e6
        spread = ", ".join(f"{each:.2f}" for each in took)
        print(f"     {side:<24} {speed:8,.0f} Mweights/s   (seconds: {spread})")
    ratio = paired(times, THEIRS, OURS)
    if args.smoke or args.scale != 1:
        print(f"     {weights / 1e6:,.0f} Mweights: {ratio:.1f} times as fast, {memory:.0f} MB")
        return 0
    verdict("compare against the same in pieces, times", paired(times, PIECES, OURS), None)
    good = [
        verdict("compare against gguf-py and NumPy, times", ratio, BAR, at_least=True),
        verdict("peak anonymous memory, MB", memory, MEMORY),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())

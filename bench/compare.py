"""How fast `qassay compare` measures a quantized model, as a ratio to gguf-py and NumPy.

python bench/compare.py               # a Q4_K file of 1 GB and its f32 source of 7 GB
python bench/compare.py --scale 16    # on a sixteenth of that
python bench/compare.py --smoke       # a few rows: not judged

The other side decodes each tensor with gguf-py and takes RMSE, largest error, SNR, cosine and the
RMSE of each row with NumPy, in pieces that fit memory. Both read files that were just written.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

from timing import verdict

COLUMNS = 4096
BAR = 20.0
MEMORY = 1.5
"""GB that the process may take, besides the pages of the files themselves."""


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


def by_numpy(one: Path, two: Path, most: int) -> tuple[float, int]:
    """Return seconds and weights of gguf-py and NumPy over at most so many tensors."""
    source = {t.name: t for t in gguf.GGUFReader(one).tensors}
    began, weights = time.perf_counter(), 0
    for tensor in gguf.GGUFReader(two).tensors[:most]:
        floats = source[tensor.name].data.reshape(-1, COLUMNS)
        sums = np.zeros(4)
        for start in range(0, floats.shape[0], 512):
            old = floats[start : start + 512]
            new = gguf.quants.dequantize(tensor.data[start : start + 512], tensor.tensor_type)
            error = new - old
            square = (error * error).sum(axis=1, dtype=np.float64)
            np.sqrt(square / COLUMNS)
            sums += (
                square.sum(),
                np.sum(old * old, dtype=np.float64),
                np.sum(new * new, dtype=np.float64),
                np.sum(old * new, dtype=np.float64),
            )
            np.abs(error).max()
            weights += old.size
        math.sqrt(sums[0] / weights), sums[3] / math.sqrt(sums[1] * sums[2])
    return time.perf_counter() - began, weights


def by_qassay(one: Path, two: Path, weights: int) -> tuple[float, int, float]:
    """Return seconds, weights and memory of a process that runs the command once."""
    script = (
        "import resource, sys\n"
        "from qassay.cli.main import cli\n"
        "try:\n    cli(sys.argv[1:])\n"
        "finally:\n    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", script, "compare", str(one), str(two), "-q"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - began, weights, int(done.stderr.split()[-1]) / 2**20


def main() -> int:
    """Run it; the exit code tells whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--folder", default=None)
    args = parser.parse_args()
    rows, tensors = (512, 2) if args.smoke else (14_336 // 2, max(1, 64 // args.scale))
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        one, two = write(Path(name), rows, tensors)
        by_qassay(one, two, 1)  # compiles, and brings both files into the page cache
        ours, weights, memory = by_qassay(one, two, rows * COLUMNS * tensors)
        took, seen = by_numpy(one, two, min(tensors, 8))
    mine, theirs = weights / ours / 1e6, seen / took / 1e6
    size = two.name
    print(
        f"     {size}: {weights / 1e6:,.0f} Mweights; compare {mine:,.0f} Mweights/s, gguf-py and"
        f" NumPy {theirs:,.0f} Mweights/s; {memory:.2f} GB at most, mapped files included"
    )
    judged = not args.smoke and args.scale == 1
    good = verdict("compare against gguf-py and NumPy, times", mine / theirs, BAR, at_least=True)
    return 0 if good or not judged else 1


if __name__ == "__main__":
    raise SystemExit(main())

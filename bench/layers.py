"""How fast `qassay check` is on weights that are kept in several tensors, as ratios in one run.

python bench/layers.py                 # folders of 4 GB, GPTQ and NVFP4, are made in bench/data
python bench/layers.py --smoke         # the same on 8 MB: not judged

The marginal cost of a folder is what a check of it takes, less what a check of one small layer
takes, over what `cat` takes to read the same files.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from timing import interleaved, medians, peak_anonymous, pin, verdict, wall

MB = 1 << 20
GB = 1 << 30
CHECK = [sys.executable, "-m", "qassay", "check", "--no-progress", "--jobs", "2"]
SHAPES = (("mlp.down_proj", 4096, 11008), ("mlp.gate_proj", 11008, 4096))
"""Name, N and K of the layers, those of a model of 7 billion weights."""
SHARD = 2 * GB

Part = tuple[str, str, list[int], np.ndarray]
"""Name, dtype, shape and bytes of a tensor."""


def normal_codes(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return bytes of two 4-bit codes each that lie around the middle, as those of weights do."""
    codes = np.clip(np.round(rng.standard_normal(2 * size, np.float32) * 2.5 + 8), 0, 15)
    pairs = codes.astype(np.uint8).reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << 4


def gptq(rng: np.random.Generator, rows: int, columns: int) -> Iterator[Part]:
    """Yield the parts of a layer of 4-bit codes in groups of 128."""
    groups = columns // 128
    scales = rng.uniform(0.002, 0.02, groups * rows).astype(np.float16)
    index = (np.arange(columns) // 128).astype(np.int32)
    half = rows * columns // 2
    yield "qweight", "I32", [columns // 8, rows], normal_codes(rng, half)
    yield "qzeros", "I32", [groups, rows // 8], normal_codes(rng, groups * rows // 2)
    yield "scales", "F16", [groups, rows], scales.view(np.uint8)
    yield "g_idx", "I32", [columns], index.view(np.uint8)


def nvfp4(rng: np.random.Generator, rows: int, columns: int) -> Iterator[Part]:
    """Yield the parts of a layer of E2M1 codes in groups of 16."""
    scales = rng.integers(0x60, 0x7F, rows * columns // 16).astype(np.uint8)
    overall = np.array([2000], np.float32)
    codes = rng.integers(0, 256, rows * columns // 2, dtype=np.uint8)
    yield "weight_packed", "U8", [rows, columns // 2], codes
    yield "weight_scale", "F8_E4M3", [rows, columns // 16], scales
    yield "weight_global_scale", "F32", [1], overall.view(np.uint8)


CONFIGS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False,
             "sym": False, "checkpoint_format": "gptq_v2"},
    "nvfp4": {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": [],
        "quantization_status": "compressed",
        "config_groups": {"group_0": {
            "targets": ["Linear"], "input_activations": None, "output_activations": None,
            "weights": {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16,
                        "strategy": "tensor_group", "dynamic": False},
        }},
    },
}  # fmt: skip
MAKERS: dict[str, Callable[[np.random.Generator, int, int], Iterator[Part]]] = {
    "gptq": gptq,
    "nvfp4": nvfp4,
}


def make(folder: Path, family: str, nbytes: int, divide: int) -> Path:
    """Write a checkpoint of about `nbytes`, unless it is there already."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1234)
    base = [
        (name, list(MAKERS[family](rng, *(size // divide // 128 * 128 for size in shape))))
        for name, *shape in SHAPES
    ]
    size = sum(raw.size for _, parts in base for _, _, _, raw in parts)
    pairs = max(1, round(nbytes / size))
    a_shard = max(1, SHARD // size)
    for shard, first in enumerate(range(0, pairs, a_shard)):
        listed = [
            (f"model.layers.{number}.{name}.{part}", dtype, shape, raw)
            for number in range(first, min(first + a_shard, pairs))
            for name, parts in base
            for part, dtype, shape, raw in parts
        ]
        write(folder / f"part{shard}.safetensors", listed)
    config = {"model_type": "llama", "quantization_config": CONFIGS[family]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write(path: Path, tensors: list[Part]) -> None:
    """Write a safetensors file without holding it in memory."""
    header, end = {}, 0
    for name, dtype, shape, raw in tensors:
        offsets = [end, end + raw.size]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        end += raw.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, raw in tensors:
            file.write(memoryview(raw))


def measure(family: str, folder: Path, small: Path, runs: int, *, judged: bool) -> list[bool]:
    """Print what a check of one folder takes; return which bars are met."""
    files = sorted(map(str, folder.glob("*.safetensors")))
    fast = {"QASSAY_KERNELS": "fast"}
    full = ["--stats", "full"]
    times = interleaved(
        runs,
        {
            "check": lambda: wall([*CHECK, str(folder)], fast),
            "full": lambda: wall([*CHECK, *full, str(folder)], fast),
            "small": lambda: wall([*CHECK, str(small)], fast),
            "small, full": lambda: wall([*CHECK, *full, str(small)], fast),
            "cat": lambda: wall(["cat", *files]),
        },
    )
    took = medians(times)
    for name, value in took.items():
        print(f"     {family} {name:<24} median {value:7.3f} s", flush=True)
    plain = (took["check"] - took["small"]) / took["cat"]
    counted = (took["full"] - took["small, full"]) / took["cat"]
    peak = peak_anonymous([*CHECK, str(folder)], fast) / MB
    bars = (2.5, 8.0, 200.0) if judged else (None, None, None)
    return [
        verdict(f"{family}: (check - check of a small one) / cat", plain, bars[0]),
        verdict(f"{family}: the same with --stats full", counted, bars[1]),
        verdict(f"{family}: peak anonymous memory, MB", peak, bars[2]),
    ]


def main() -> int:
    """Run everything; exit 1 when a bar is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--smoke", action="store_true", help="a few MB, not judged")
    options.add_argument("--runs", type=int, default=7)
    options.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    chosen = options.parse_args()
    pin(2)
    met: list[bool] = []
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) if chosen.smoke else chosen.data
        for family in MAKERS:
            nbytes, divide = (8 * MB, 8) if chosen.smoke else (4 * GB, 1)
            large = make(data / f"{family}-{nbytes // MB}mb", family, nbytes, divide)
            small = make(data / f"{family}-small", family, 1, 8)
            runs = 1 if chosen.smoke else chosen.runs
            met += measure(family, large, small, runs, judged=not chosen.smoke)
    if chosen.smoke:
        print("     the bars are for full scale: nothing was judged")
        return 0
    print(f"{sum(met)} of {len(met)} bars met")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())

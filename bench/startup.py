"""How long the small commands take, as multiples of `python -c "import numpy"`, in one run.

python bench/startup.py
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from qassay.testing.gguf_writer import write_gguf

from timing import interleaved, medians, verdict, wall

PYTHON = sys.executable
ROOT = Path(__file__).resolve().parent.parent
BARS = {
    "--help": 2,
    "check of the example": 5,
    "inspect, 300 tensors, 2 x 250,000 strings": 4,
    "fit of a configuration": 5,
}


def wide_header(path: Path) -> Path:
    """Write a file of 300 small tensors with a vocabulary and as many merges."""
    words = [f"token{number}" for number in range(250_000)]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.merges": [f"{word} {word}" for word in words],
    }
    tensors = [(f"blk.{n // 10}.t{n % 10}.weight", 0, [32], bytes(128)) for n in range(300)]
    path.write_bytes(write_gguf(metadata, tensors))
    return path


def main() -> int:
    """Measure and compare with the bars."""
    with tempfile.TemporaryDirectory() as folder:
        wide = wide_header(Path(folder) / "wide.gguf")
        example = ROOT / "examples" / "minilm-layer0.gguf"
        commands = {
            "import numpy": ["-c", "import numpy"],
            "--help": ["-m", "qassay", "--help"],
            "check of the example": ["-m", "qassay", "check", str(example)],
            "inspect, 300 tensors, 2 x 250,000 strings": ["-m", "qassay", "inspect", str(wide)],
            "fit of a configuration": [
                "-m", "qassay", "fit", str(ROOT / "examples" / "qwen3.5-2b"),
                "--on", "sophgo:bm1684x@1.28.1", "--to", "w4bf16", "--exit-zero",
            ],
        }  # fmt: skip
        jobs = {name: partial(wall, [PYTHON, *words]) for name, words in commands.items()}
        took = medians(interleaved(9, jobs))
    base = took["import numpy"]
    met = [verdict(f"{name} / import numpy", took[name] / base, bar) for name, bar in BARS.items()]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())

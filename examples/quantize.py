"""One tensor that Q6_K would turn to zeros: refused, given another type, or let through."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

WAYS = (
    [],
    ["--type-for", "layers.1.*=Q4_0"],
    ["--allow", "Q502"],
)


def main() -> None:
    """Print what `qassay quantize` says to each way of asking."""
    weights = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.safetensors"
        tensors = []
        for layer, sd in enumerate((2e-2, 1e-5)):
            scaled = weights * np.float32(sd)
            shape = list(scaled.shape)
            tensors.append(SafeTensor(f"layers.{layer}.weight", "F32", shape, scaled.tobytes()))
        source.write_bytes(write_safetensors(tensors))
        for way in WAYS:
            command = ["quantize", "model.safetensors", "new.gguf", "--to", "Q6_K", *way]
            print(f"$ qassay {shlex.join(command)}")
            done = subprocess.run(  # noqa: S603 - the words above
                [sys.executable, "-m", "qassay", *command],
                cwd=folder,
                env={**os.environ, "COLUMNS": "200"},
                capture_output=True,
                text=True,
                check=False,
            )
            there = (Path(folder) / "new.gguf").exists()
            print(done.stdout or done.stderr)
            print(f"exit code {done.returncode}; new.gguf is {'there' if there else 'not there'}\n")
            (Path(folder) / "new.gguf").unlink(missing_ok=True)


if __name__ == "__main__":
    main()

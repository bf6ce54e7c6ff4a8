"""Memory does not grow with the model."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

LIMIT_KB = 300_000


@pytest.fixture
def large(tmp_path):
    """A safetensors file of 300 MB, written piece by piece; three large tensors and small ones."""
    rng = np.random.default_rng(0)
    shapes = [(6000, 4096)] * 3 + [(64, 256)] * 8
    header, offset = {}, 0
    for number, (rows, columns) in enumerate(shapes):
        end = offset + rows * columns * 4
        header[f"{number}.weight"] = {
            "dtype": "F32", "shape": [rows, columns], "data_offsets": [offset, end]
        }  # fmt: skip
        offset = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 64)
    path = tmp_path / "large.safetensors"
    with path.open("wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        for rows, columns in shapes:
            left = rows * columns
            while left:
                piece = min(left, 1 << 22)
                stream.write(rng.standard_normal(piece, dtype=np.float32).tobytes())
                left -= piece
    return path


def peak_kb(process) -> int:
    """Return the most anonymous memory that a process had, as sampled until it ends."""
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            break
        for line in status.splitlines():
            if line.startswith("RssAnon"):
                peak = max(peak, int(line.split()[1]))
        time.sleep(0.005)
    return peak


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")  # noqa: PTH110
def test_memory_is_bounded(spawn, large):
    assert large.stat().st_size > 290_000_000
    for jobs in (1, 2):
        for to in ("Q8_0", "Q4_0"):
            process = spawn(large, "out.gguf", "--to", to, "--force", "-j", jobs)
            peak = peak_kb(process)
            process.communicate(timeout=60)
            assert process.returncode == 0
            assert 10_000 < peak < LIMIT_KB, (jobs, to)

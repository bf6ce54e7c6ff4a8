"""The same weights, ever smaller: which types still hold them is not what one would guess."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import qassay
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

TYPES = ("Q8_0", "Q4_0", "Q4_K", "Q6_K")


def main() -> None:
    """Print, for each size of weights, what quantizing them would do."""
    weights = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        for sd in (2e-2, 1e-5, 1e-6):
            scaled = weights * np.float32(sd)
            tensor = SafeTensor("weight", "F32", list(scaled.shape), scaled.tobytes())
            path.write_bytes(write_safetensors([tensor]))
            found = dict.fromkeys(TYPES, "fine")
            report = qassay.check(path, to=TYPES, select="Q5")
            for finding in sorted(report.findings, key=lambda finding: finding.severity):
                name = (finding.field or "").removeprefix("ggml.").upper()
                found[name] = f"{finding.severity.label} {finding.code} {finding.name}"
            print(f"standard deviation {sd:g}")
            for name, verdict in found.items():
                print(f"  {name:5} {verdict}")


if __name__ == "__main__":
    main()

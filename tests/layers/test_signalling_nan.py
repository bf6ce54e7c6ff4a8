"""A signalling NaN in a part of a layer is an answer, and no warning of NumPy's on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from qassay.run.check import check
from qassay.run.compare import compare
from qassay.run.options import CheckOptions
from qassay.testing.layers import layer_tensors
from qassay.testing.safetensors_writer import write_safetensors

# exponent all ones, quiet bit 0, a mantissa that is not zero
PATTERNS = {"F32": b"\x01\x00\xa0\x7f", "F16": b"\x01\x7d", "BF16": b"\xa1\x7f"}
LABELS = {"f32": "F32", "f16": "F16", "bf16": "BF16", "i32": "I32", "i64": "I64", "i8": "I8",
          "u8": "U8", "f8_e4m3": "F8_E4M3"}  # fmt: skip
FAMILIES = (
    ("gptq", "scales"), ("awq", "scales"), ("compressed.pack", "weight_scale"),
    ("compressed.int", "weight_scale"), ("fp8", "weight_scale"),
    ("nvfp4.compressed", "weight_global_scale"), ("nvfp4.modelopt", "weight_scale_2"),
)  # fmt: skip


def _written(path: Path, family: str, part: str, dtype: str, *, broken: bool) -> Path:
    recipe = {"layer": family, "name": "a", "shape": [32, 64], "group": 32, "dtype": dtype.lower()}
    entries = []
    for name, (encoding, shape, raw) in layer_tensors(recipe).items():
        label = LABELS[encoding]
        data = raw.tobytes()
        if broken and name == f"a.{part}":
            pattern = PATTERNS[label]
            data = pattern + data[len(pattern) :]
        entries.append((name, label, list(shape), data))
    path.write_bytes(write_safetensors(entries))
    return path


@pytest.mark.parametrize("dtype", PATTERNS)
@pytest.mark.parametrize(("family", "part"), FAMILIES)
def test_checked_and_compared(family: str, part: str, dtype: str, tmp_path: Path) -> None:
    sound = _written(tmp_path / "a.safetensors", family, part, dtype, broken=False)
    odd = _written(tmp_path / "b.safetensors", family, part, dtype, broken=True)
    found = check(odd, CheckOptions()).findings
    assert [each.code for each in found if each.severity.name == "ERROR"] == ["Q201"]
    for one, other, relation in ((sound, odd, "different"), (odd, odd, "equal")):
        assert compare(one, other).comparison.relation == relation

"""Write the two files in examples/: a sound GGUF of real weights, and a twin with planted faults.

The blocks are those of tests/fixtures/minilm-l0-out-alltypes.gguf, unchanged: the first 16 rows
of a layer of all-MiniLM-L6-v2 (MIT), quantized by libgguf to every type that qassay reads.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import qassay
from qassay.encodings import BlockEncoding, all_encodings, by_id
from qassay.testing.gguf_writer import GgufTensor, write_gguf

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "fixtures" / "minilm-l0-out-alltypes.gguf"
METADATA = {
    "general.architecture": "bert",
    "general.name": "all-MiniLM-L6-v2, encoder.layer.0.output.dense.weight[:16], in each type",
    "general.license": "mit",
    "general.quantized_by": "libgguf 0.2.2",
}
# (tensor, block, field, bits): one fault of each kind that is hard to find by hand.
FAULTS = (
    ("w.Q8_0", 75, "d", 0x7E00),  # NaN
    ("w.Q4_0", 100, "d", 0x0000),  # zero over live codes: the block is wiped
    ("w.Q4_K", 17, "dmin", 0x7C00),  # infinity
    ("w.Q5_1", 300, "d", 0x9C08),  # negative where the writer never is
    ("w.MXFP4", 5, "e", 0xFF),  # NaN in the standard, 2^127 in ggml
)


def build(*, broken: bool) -> bytes:
    """Return the example file, or its broken twin."""
    tensors = []
    with qassay.open(SOURCE) as model:
        for tensor in model.tensors.values():
            if tensor.encoding not in all_encodings():
                continue
            raw = np.array(tensor.raw())
            if broken:
                plant(tensor.name, tensor.encoding, raw)
            number = int(tensor.stored.type.label)
            tensors.append(GgufTensor(tensor.name, number, tensor.shape[::-1], raw.tobytes()))
    return write_gguf(METADATA, tensors)


def plant(name: str, encoding: str, raw: np.ndarray) -> None:
    """Write this tensor's faults into its bytes."""
    for tensor, block, field, bits in FAULTS:
        kind = by_id(encoding)
        if tensor == name and issubclass(kind, BlockEncoding):
            at = kind.scale_fields[field]
            start = block * kind.block_bytes + at.offset
            raw[start : start + at.nbytes] = list(bits.to_bytes(at.nbytes, "little"))
    if name == "w.F16":
        raw.view("<u2")[1536 + 3] = 0x7E01  # row 1, column 3: NaN
    if name == "w.Q6_K":
        raw.reshape(16, -1)[9] = 0  # a row of zeros: no fault, but worth a note


def main() -> int:
    """Write both files, or with --check tell whether they are what this script writes."""
    stale = []
    for name, broken in (("minilm-layer0.gguf", False), ("minilm-layer0-broken.gguf", True)):
        path = ROOT / "examples" / name
        data = build(broken=broken)
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_bytes() != data:
                stale.append(name)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    if stale:
        print(f"stale: {', '.join(stale)}; run python tools/make_examples.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Decoding equals the C reference (ggml) and libgguf, bit for bit; NaN is compared as NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.encodings import BlockEncoding, all_encodings
from qassay.kernels import fast_decode, reference

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
BLOCK = [e for e in all_encodings().values() if issubclass(e, BlockEncoding)]
EXPECTED = {
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
}  # fmt: skip
DECODERS = {"reference": reference.dequantize, "fast": fast_decode.dequantize}


def label(encoding: type[BlockEncoding]) -> str:
    return encoding.id.rpartition(".")[2].upper()


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    same = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
    wrong = np.flatnonzero(~same.reshape(-1))
    assert wrong.size == 0, f"{wrong.size} of {same.size} differ, the first at {wrong[0]}"


def test_every_promised_type_is_there() -> None:
    assert {label(e) for e in BLOCK} >= EXPECTED


def golden_blocks(encoding: type[BlockEncoding]) -> tuple[np.ndarray, np.ndarray]:
    """Return blocks and what another program decodes them to, from any `*_dequantize.npz`."""
    for path in sorted(FIXTURES.glob("*_dequantize.npz")):
        with np.load(path) as golden:
            if f"{label(encoding)}__bytes" in golden.files:
                return golden[f"{label(encoding)}__bytes"], golden[f"{label(encoding)}__f32"]
    pytest.fail(
        f"no golden data for {encoding.id}: put blocks written by another program into"
        f" tests/fixtures/<program>_dequantize.npz as {label(encoding)}__bytes, and what that"
        f" program decodes them to as {label(encoding)}__f32, with provenance in the README there"
    )


@pytest.mark.parametrize("kernels", DECODERS)
@pytest.mark.parametrize("encoding", BLOCK, ids=label)
def test_equals_the_program_that_defines_it(encoding: type[BlockEncoding], kernels: str) -> None:
    blocks, expected = golden_blocks(encoding)
    assert blocks.shape[1] == encoding.block_bytes
    ours = DECODERS[kernels](np.ascontiguousarray(blocks).reshape(-1), encoding)
    assert_same_bits(ours.reshape(expected.shape), expected)


@pytest.mark.parametrize("encoding", [e for e in BLOCK if label(e) in EXPECTED], ids=label)
def test_equals_libgguf_on_real_weights(encoding: type[BlockEncoding], kernel_set: str) -> None:
    with (
        np.load(FIXTURES / "minilm-l0-out-alltypes.oracle.npz") as golden,
        qassay.open(FIXTURES / "minilm-l0-out-alltypes.gguf") as model,
    ):
        tensor = model.tensors[f"w.{label(encoding)}"]
        assert tensor.encoding == encoding.id
        assert tensor.shape == (16, 1536)
        assert_same_bits(tensor.dequantize(), golden[label(encoding)])


def test_equals_gguf_py_on_slices_of_real_models(real_files: Path, kernel_set: str) -> None:
    gguf = pytest.importorskip("gguf")
    path = real_files / "slices" / "real-slices.gguf"
    reader = gguf.GGUFReader(path)
    with qassay.open(path) as model:
        assert len(reader.tensors) == len(model.tensors)
        for theirs in reader.tensors:
            values = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
            assert_same_bits(model.tensors[theirs.name].dequantize(), values)

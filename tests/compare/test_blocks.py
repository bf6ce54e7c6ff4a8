"""ggml's blocks in canonical form decode to what the encodings decode to, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from qassay.comparison.canonical_blocks import canonical_rows
from qassay.comparison.forms import form_of
from qassay.encodings.base import BlockEncoding
from qassay.encodings.registry import all_encodings

BLOCKS = [each for each in all_encodings().values() if issubclass(each, BlockEncoding)]


@pytest.mark.parametrize("encoding", BLOCKS, ids=lambda each: each.id)
def test_any_bytes_decode_alike(encoding):
    rng = np.random.default_rng(7)
    columns = 3 * encoding.block
    raw = rng.integers(0, 256, 50 * 3 * encoding.block_bytes, dtype=np.uint8)
    rows = canonical_rows(encoding, raw, columns)
    expected = encoding.dequantize(raw).reshape(50, columns)
    assert np.array_equal(rows.dequantize(), expected, equal_nan=True)
    form = form_of(rows, encoding.code_bits().width)
    assert form.codes.min() >= 0
    assert np.array_equal(form.values(), expected, equal_nan=True)
    assert np.array_equal(form.spread().values(), expected, equal_nan=True)


def test_groups_are_sub_blocks():
    [q4_k] = [each for each in BLOCKS if each.id == "ggml.q4_k"]
    rows = canonical_rows(q4_k, np.zeros(2 * 144, np.uint8), 256)
    assert rows.shape == (2, 256)
    assert rows.scales.shape == (2, 8)
    assert rows.minimums is not None
    assert rows.groups.tolist() == [k // 32 for k in range(256)]

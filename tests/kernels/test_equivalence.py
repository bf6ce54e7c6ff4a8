"""The fast kernels equal the NumPy reference, bit for bit, on anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qassay.encodings import BlockEncoding, PlainEncoding, all_encodings
from qassay.kernels import (
    fast_blocks,
    fast_codes,
    fast_decode,
    fast_values,
    preflight_fast,
    preflight_reference,
    reference,
)
from qassay.kernels.plan import scan_plan

EVERY = list(all_encodings().values())
BLOCK = [e for e in EVERY if issubclass(e, BlockEncoding)]
FLOATS = [e for e in EVERY if issubclass(e, PlainEncoding) and e.kind == "float"]
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFFFF]


def name(encoding: type) -> str:
    return encoding.id  # type: ignore[attr-defined,no-any-return]


def awkward_blocks(encoding: type[BlockEncoding], seed: int, n: int) -> np.ndarray:
    """Return blocks of which many are blank, full, zero-scaled or otherwise odd."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n, encoding.block_bytes), dtype=np.uint8)
    constants = np.array([0x00, 0xFF, 0x88, 0x80, 0x7F, 0x81, 0xAA, 0x77, 0xF0, 0x0F], np.uint8)
    odd = rng.random(n) < 0.6
    blocks[odd] = rng.choice(constants, (int(odd.sum()), 1))
    mixed = rng.random(n) < 0.2
    blocks[mixed] = rng.choice(constants, (int(mixed.sum()), encoding.block_bytes))
    for field in encoding.scale_fields.values():
        chosen = rng.random(n) < 0.5
        patterns = rng.choice(np.array(SPECIAL, f"<u{2}"), int(chosen.sum()))
        raw = patterns.view(np.uint8).reshape(-1, 2)[:, : field.nbytes]
        blocks[chosen, field.offset : field.offset + field.nbytes] = raw
    return blocks


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 700))
@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_scanning_blocks(encoding: type[BlockEncoding], seed: int, n: int) -> None:
    blocks = awkward_blocks(encoding, seed, n)
    plan = scan_plan(encoding)
    ours, truth = fast_blocks.scan_blocks(blocks, plan), reference.scan_blocks(blocks, plan)
    assert np.array_equal(ours.candidates, truth.candidates)
    assert ours.forbidden == truth.forbidden
    for one, other in zip(ours.scales, truth.scales, strict=True):
        assert np.array_equal(one.patterns, other.patterns)
        assert np.array_equal(one.counts, other.counts)


@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_every_block_that_matters_is_a_candidate(encoding: type[BlockEncoding]) -> None:
    """A block that decodes to zeros although no scale is zero, or is saturated, is never missed."""
    blocks = awkward_blocks(encoding, 5, 20_000)
    values = encoding.dequantize(blocks.reshape(-1)).reshape(blocks.shape[0], -1)
    bits = encoding.code_bits()
    full = np.isin(bits.unpack(blocks), encoding.codes.extremes(bits)).all(axis=1)
    nonzero_scales = np.ones(blocks.shape[0], bool)
    for field in encoding.scale_fields.values():
        nonzero_scales &= field.values[field.patterns_of(blocks)] != 0
    must = (~values.any(axis=1) & nonzero_scales) | full
    assert must.any()
    found = reference.scan_blocks(blocks, scan_plan(encoding)).candidates
    assert set(np.flatnonzero(must)) <= set(found)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 300))
@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_counting_codes(encoding: type[BlockEncoding], seed: int, n: int) -> None:
    blocks = awkward_blocks(encoding, seed, n)
    unpacked = fast_codes.unpack_codes(blocks, encoding)
    assert np.array_equal(unpacked, reference.unpack_codes(blocks, encoding))
    ours = fast_codes.count_codes(blocks, encoding)
    assert np.array_equal(ours, reference.count_codes(blocks, encoding))
    assert ours.sum() == n * encoding.block


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 300))
@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_decoding(encoding: type[BlockEncoding], seed: int, n: int) -> None:
    raw = awkward_blocks(encoding, seed, n).reshape(-1)
    ours, truth = fast_decode.dequantize(raw, encoding), reference.dequantize(raw, encoding)
    same = (ours.view(np.uint32) == truth.view(np.uint32)) | (np.isnan(ours) & np.isnan(truth))
    assert same.all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 700), pattern=st.integers(0, 65535))
@pytest.mark.parametrize("encoding", BLOCK, ids=name)
def test_locating_patterns(encoding: type[BlockEncoding], seed: int, n: int, pattern: int) -> None:
    blocks = awkward_blocks(encoding, seed, n)
    for field in encoding.scale_fields.values():
        chosen = np.zeros(field.patterns, bool)
        chosen[[0, pattern % field.patterns, field.patterns - 1]] = True
        count = int(chosen[field.patterns_of(blocks)].sum())
        where = (blocks, field.offset, field.nbytes, chosen, count)
        assert np.array_equal(fast_blocks.locate(*where), reference.locate(*where))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    columns=st.one_of(st.integers(1, 300), st.just(9000)),
    share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
)
@pytest.mark.parametrize("encoding", FLOATS, ids=name)
def test_scanning_values(
    encoding: type[PlainEncoding], seed: int, rows: int, columns: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    kind = np.dtype(f"<u{encoding.block_bytes}")
    bits = rng.integers(0, np.iinfo(kind).max, rows * columns, dtype=kind, endpoint=True)
    sign = kind.type(1 << (8 * kind.itemsize - 1))
    odd = np.array([0, sign, 1, encoding.least_normal, encoding.first_nonfinite - 1], kind)
    chosen = rng.random(bits.size) < share
    bits[chosen] = rng.choice(odd, int(chosen.sum()))
    bits.reshape(rows, columns)[rng.random(rows) < 0.2] = rng.choice(np.array([0, sign], kind))
    least = encoding.pattern_up_to(2.0**-25)
    where = (bits, columns, encoding.least_normal, least)
    truth = reference.scan_values(*where)
    largest = preflight_reference.run_extremes(bits, columns)
    runs = np.full_like(largest, 1)
    for ours in (fast_values.scan_values(*where), preflight_fast.scan_runs(*where, runs)):
        for part in ("largest", "smallest", "zero", "subnormal", "small"):
            assert getattr(ours, part) == getattr(truth, part), part
        found = [
            np.concatenate([np.zeros(0, np.int64), *kernels.locate_small(bits, columns, least, it)])
            for kernels, it in ((fast_values, ours), (reference, truth))
        ]
        assert np.array_equal(*found)
        assert found[0].size == truth.small
        assert np.array_equal(ours.dead_rows, truth.dead_rows)
    assert runs.dtype == largest.dtype
    assert np.array_equal(runs, largest)


def test_runs_need_a_place_each() -> None:
    bits = np.zeros(3 * 70, np.uint32)
    for wrong in (np.zeros(8, np.uint32), np.zeros(10, np.uint32), np.zeros(9, np.uint16)):
        with pytest.raises(ValueError, match="3 rows of 70"):
            preflight_fast.scan_runs(bits, 70, 1, 1, wrong)


ASSEMBLY = """
import numpy as np
from qassay.encodings import by_id
from qassay.kernels import fast_decode
for name in ("ggml.q4_1", "ggml.q4_k"):
    fast_decode.dequantize(np.ones(by_id(name).block_bytes * 8, np.uint8), by_id(name))
texts = fast_decode._decode.inspect_asm()
assert texts
for text in texts.values():
    assert "mulss" in text or "mulps" in text or "fmul" in text, "no product: not the kernel"
    assert "fmadd" not in text and "fmsub" not in text and "fmla" not in text
"""


def test_the_decoder_holds_no_fused_multiply_add(tmp_path: Path) -> None:
    """A fused product and sum rounds once where ggml rounds twice: bit equality would be luck."""
    # Numba shows no assembly of code that it took from its cache: give it an empty one.
    subprocess.run(
        [sys.executable, "-c", ASSEMBLY],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        check=True,
    )

"""Engines take any array that holds numbers, or say what is wrong with it; they never crash."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from finite_rows import finite_rows, seeded
from ggml_cases import FAST, NAMES, WEIGHTED
from hypothesis import given, settings
from hypothesis import strategies as st

from qassay.core.errors import QassayError, UsageError
from qassay.encodings import by_id
from qassay.runtimes.ggml import GgmlEngine
from qassay.runtimes.registry import all_engines

ROUTES = [(name, to) for name, each in all_engines().items() for to in sorted(each.routes)]
every_route = pytest.mark.parametrize(("name", "to"), ROUTES)
KERNELS = ["reference", "fast"]


def from_bytes(raw: bytes, width: int) -> np.ndarray:
    """Return one row of any bits, repeated to its end."""
    bits = np.frombuffer(raw + bytes(-len(raw) % 4), "<u4")
    return np.resize(bits, width).astype(np.uint32).view(np.float32)


@every_route
@settings(max_examples=25, deadline=None)
@given(raw=st.binary(min_size=1, max_size=1024), kernels=st.sampled_from(KERNELS))
def test_any_bits(name: str, to: str, raw: bytes, kernels: str) -> None:
    encoding = by_id(to)
    width = max(encoding.block, 32)
    written = all_engines()[name].quantize(from_bytes(raw, width), to, kernels=kernels)
    assert written.dtype == np.uint8
    assert written.shape == (1, width // encoding.block * encoding.block_bytes)
    encoding.dequantize(written.reshape(-1))


@pytest.mark.parametrize("name", WEIGHTED)
@settings(max_examples=25, deadline=None)
@given(raw=st.binary(min_size=1, max_size=512), weights=st.binary(min_size=1, max_size=512))
def test_any_bits_as_importance(name: str, raw: bytes, weights: bytes) -> None:
    width = by_id(NAMES[name]).block
    given_ = from_bytes(weights, width)
    both = [
        GgmlEngine.quantize(from_bytes(raw, width), NAMES[name], given_, kernels=kernels)
        for kernels in KERNELS
    ]
    assert np.array_equal(*both)


CASES = [(name, False) for name in FAST] + [(name, True) for name in WEIGHTED]


@pytest.mark.parametrize(("name", "weighted"), CASES)
@settings(max_examples=8, deadline=None)
@given(x=finite_rows(512), seed=st.integers(0, 2**32 - 1))
def test_fast_equals_reference_on_finite_rows(
    name: str, weighted: bool, x: np.ndarray, seed: int
) -> None:
    importance = np.random.default_rng(seed).gamma(0.5, 1.0, 512) if weighted else None
    fast, reference = (
        GgmlEngine.quantize(x, NAMES[name], importance, kernels=kernels) for kernels in KERNELS
    )
    differs = np.flatnonzero((fast != reference).any(axis=1))
    assert not differs.size, x[differs[:1]]


def odd_address(x: np.ndarray) -> np.ndarray:
    raw = np.empty(x.nbytes + 1, np.uint8)
    raw[1:] = x.reshape(-1).view(np.uint8)
    return raw[1:].view(x.dtype).reshape(x.shape)


def read_only(x: np.ndarray) -> np.ndarray:
    fixed = x.copy()
    fixed.flags.writeable = False
    return fixed


SAME: dict[str, Callable[[np.ndarray], object]] = {
    "read-only": read_only,
    "at an odd address": odd_address,
    "columns first": np.asfortranarray,
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "big-endian": lambda x: x.astype(">f4"),
    "float64": lambda x: x.astype(np.float64),
    "a list": lambda x: x.tolist(),
}


@every_route
@pytest.mark.parametrize("how", SAME)
def test_how_an_array_lies_does_not_matter(name: str, to: str, how: str) -> None:
    x = seeded(3, 1, 256)
    quantize = all_engines()[name].quantize
    assert np.array_equal(quantize(SAME[how](x), to), quantize(x, to))


@every_route
def test_integers_halves_and_booleans_are_numbers(name: str, to: str) -> None:
    quantize = all_engines()[name].quantize
    numbers = np.arange(-128, 128).reshape(1, -1)
    for dtype in (np.int8, np.int64, np.float16):
        assert np.array_equal(quantize(numbers.astype(dtype), to), quantize(numbers * 1.0, to))
    flags = numbers % 3 == 0
    assert np.array_equal(quantize(flags, to), quantize(flags * 1.0, to))


@every_route
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("shape", [(0, 256), (3, 0), (0, 0), (0,)])
def test_nothing_gives_no_bytes(name: str, to: str, kernels: str, shape: tuple[int, ...]) -> None:
    empty = np.zeros(shape, np.float32)
    assert all_engines()[name].quantize(empty, to, kernels=kernels).size == 0


WRONG: dict[str, tuple[object, str]] = {
    "three axes": (np.zeros((2, 2, 256), np.float32), "shape [2, 2, 256]"),
    "complex numbers": (np.zeros((2, 256), np.complex64), "complex64"),
    "text": (np.full((2, 256), "1"), "<U1"),
    "objects": (np.full((2, 256), None), "object"),
    "dates": (np.zeros((2, 256), "M8[s]"), "datetime64[s]"),
    "a ragged list": ([[1.0] * 256, [1.0]], "inhomogeneous"),
}


@every_route
@pytest.mark.parametrize("what", WRONG)
def test_what_holds_no_rows_of_numbers_is_refused(name: str, to: str, what: str) -> None:
    array, told = WRONG[what]
    with pytest.raises(UsageError) as refused:
        all_engines()[name].quantize(array, to)  # type: ignore[arg-type]
    assert told in str(refused.value.found)


@pytest.mark.parametrize("what", [what for what in WRONG if what != "three axes"])
def test_importance_that_holds_no_numbers_is_refused(what: str) -> None:
    array, told = WRONG[what]
    with pytest.raises(UsageError, match="importance") as refused:
        GgmlEngine.quantize(np.zeros((2, 256)), "Q4_K", array)  # type: ignore[arg-type]
    assert told in str(refused.value.found)


def test_other_types_of_float_and_numbers_beyond_float32() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-1, 1, 32, dtype=np.float32)
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        narrow = x.astype(dtype)
        wide = narrow.astype(np.float32)
        assert np.array_equal(
            GgmlEngine.quantize(narrow, "Q8_0"), GgmlEngine.quantize(wide, "Q8_0")
        )
    huge = np.full(32, 1e300)
    assert np.array_equal(
        GgmlEngine.quantize(huge, "Q8_0"), GgmlEngine.quantize(np.full(32, np.inf), "Q8_0")
    )


@every_route
@pytest.mark.parametrize("width", [1, 31, 33, 255, 257])
def test_rows_that_are_no_whole_blocks_are_refused(name: str, to: str, width: int) -> None:
    if width % by_id(to).block == 0:
        return
    with pytest.raises(QassayError, match="whole number"):
        all_engines()[name].quantize(np.ones((2, width), np.float32), to)

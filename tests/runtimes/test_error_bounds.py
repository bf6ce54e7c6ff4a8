"""decode(quantize(x)) is as close as the type allows, for every finite x and every engine.

Where the bounds come from, for the types whose scale follows from the block's extremes. Let d be
the scale as computed and D as stored, u = x / d the weight in exact steps, q its code (without
zero point). Codes are chosen for d and decoded with D:

    x - D q  =  d (u - q)  +  (d - D) q

- |u - q| <= 1/2 by rounding; Q4_0 and Q5_0 give the extreme the code -8 (-16), so that a weight
  of the other sign beyond 7.5 (15.5) is cut off at 7 (15): then |u - q| = |u| - 7 <= 1.
  Kestrel's Q8_0 adds 1/2 and cuts off toward zero, which is up to 3/2 for negative weights.
  Quotients and sums are float32, u is at most 128: that adds less than `SLACK` steps.
- |q| <= |u| + |u - q|.
- |D - d| <= max(2^-11 d, 2^-25): half a unit of f16; for Kestrel's older conversion, which cuts
  off and flushes, 2^-10 d from 2^-14 on.
- Q4_1 and Q5_1 store the minimum m as M, u is (x - m) / d, and |M - m| is added.
- D q has at most 19 bits and is exact in float32; D q + M is rounded: 2^-24 of the result.

The preflight tells D, and with it which blocks are lost (D and M are 0), overflow (one of them is
infinite) or are coarse (D or M moves a weight by more than 1.27 d and by 1 % of the block). A
block of one constant has no step: its M is the f16 nearest to m, and no verdict is about that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from finite_rows import finite_rows, seeded
from hypothesis import given, settings

from qassay.encodings import BlockEncoding, PlainEncoding, by_id
from qassay.encodings.fields import Role
from qassay.runtimes.preflight import COARSE_STEPS, Preflight, extremes, of_extremes
from qassay.runtimes.preflight_settle import LEAST_SHARE, plain_limits, settle
from qassay.runtimes.registry import all_engines

Doubles = npt.NDArray[np.float64]

LEGACY = ["ggml.q4_0", "ggml.q4_1", "ggml.q5_0", "ggml.q5_1", "ggml.q8_0"]
ROUTES = [(name, to) for name, each in all_engines().items() for to in sorted(each.routes)]
SLACK = 2.0**-15
LEAST = 2.0**-149
HALF_ULP = 2.0**-25


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    """Let the preflight run the compiled quantizers however few blocks there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QASSAY_KERNELS", "fast")
        yield


def of(*routes: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "to"), [r for r in ROUTES if r[1] in routes])


def written(name: str, to: str, x: np.ndarray) -> tuple[np.ndarray, Doubles]:
    """Return the bytes of blocks and what they stand for."""
    encoding = by_id(to)
    raw = all_engines()[name].quantize(x, to).reshape(-1, encoding.block_bytes)
    return raw, encoding.dequantize(raw.reshape(-1)).astype(float).reshape(x.shape)


def field_of(to: str, role: Role, raw: np.ndarray) -> Doubles:
    """Return what is stored in a scale field of blocks, zeros where the type has none."""
    encoding = by_id(to)
    assert issubclass(encoding, BlockEncoding)
    field = encoding.scale_of(role)
    if field is None:
        return np.zeros(len(raw))
    return field.values[field.patterns_of(raw)].astype(float)


def step_error(name: str, to: str, u: Doubles) -> Doubles:
    """Return how far, in exact steps, a weight may be from its code."""
    if name.startswith("kestrel") and to == "ggml.q8_0":
        return np.where(u < 0, 1.5, 0.5) + SLACK
    top = {"ggml.q4_0": 7, "ggml.q5_0": 15}.get(to, 127)
    return np.maximum(0.5, u - top) + SLACK


def block_bound(name: str, to: str, x: np.ndarray, facts: Preflight, raw: np.ndarray) -> Doubles:
    """Return the largest error of each weight of blocks `[n, 32]`."""
    d, m = facts.exact.astype(float)[:, None], facts.offset.astype(float)[:, None]
    with np.errstate(invalid="ignore"):  # of infinite scales: what no bound is for
        moved = np.abs(field_of(to, Role.SCALE, raw)[:, None] - d)
        moved_offset = np.abs(field_of(to, Role.OFFSET, raw)[:, None] - m)
    shifted = x.astype(float) - m
    u = np.divide(shifted, d, out=np.zeros_like(shifted), where=d != 0)
    off = step_error(name, to, u)
    error = np.abs(d) * off + moved * (np.abs(u) + off) + moved_offset
    error = np.where(d == 0, np.abs(shifted) + moved_offset, error)
    return error + 2.0**-24 * (np.abs(x) + error) + LEAST


def check_stored(name: str, d: Doubles, stored: Doubles) -> None:
    """The stored scale is the f16 nearest to the scale; Kestrel's older one is cut off."""
    size, kept = np.abs(d), np.abs(stored)
    if name == "kestrel-legacy":
        assert not kept[size < 2.0**-14].any()
        assert np.isinf(kept[size >= 65536]).all()
        normal = (size >= 2.0**-14) & (size < 65536)
        assert (kept <= size)[normal].all()
        assert (size - kept < 2.0**-10 * size)[normal].all()
        return
    assert np.isinf(kept[size >= 65520]).all()
    finite = size < 65520
    allowed = np.maximum(2.0**-11 * size, HALF_ULP)
    assert (np.abs(kept - size)[finite] <= allowed[finite]).all()


def check_legacy(name: str, to: str, x: np.ndarray) -> None:
    raw, values = written(name, to, x)
    encoding = by_id(to)
    assert issubclass(encoding, BlockEncoding)
    facts, verdict = of_extremes(extremes(x), to), settle(x, encoding)
    with np.errstate(all="ignore"):
        stored, stored_offset = field_of(to, Role.SCALE, raw), field_of(to, Role.OFFSET, raw)
        check_stored(name, facts.exact.astype(float), stored)
        overflow = ~(np.isfinite(stored) & np.isfinite(stored_offset))
        if name != "kestrel-legacy":  # it stores scales its own way: the verdict is for f16
            assert np.array_equal(overflow, verdict.overflow)
            lost = x.any(axis=1) & ~values.any(axis=1)
            assert np.array_equal(stored, facts.stored.astype(float))
            assert np.array_equal((stored == 0) & (stored_offset == 0) & x.any(axis=1), lost)
            assert np.array_equal(verdict.lost, lost)
        assert not np.isfinite(values[overflow]).any()
        error = np.abs(values - x)
        within = error <= block_bound(name, to, x, facts, raw)
        assert within[~overflow].all(), x[~(within.all(axis=1) | overflow)][:1]
        assert np.isfinite(values[~overflow]).all()
        if name == "kestrel-legacy":
            return
        # What no verdict names is at most this far off, whatever is stored.
        fine = ~(verdict.overflow | verdict.lost | verdict.coarse)
        d, amax = np.abs(facts.exact.astype(float)), facts.amax.astype(float)
        moves = 2 if to.endswith("_1") else 1
        steps = np.maximum(COARSE_STEPS * d, LEAST_SHARE * amax) * moves
        steps = np.where(d == 0, np.maximum(2.0**-11 * amax, HALF_ULP), steps)
        allowed = d * (1.5 if name == "kestrel" else 1.0) * (1 + SLACK) + steps
        codes = 1 + 1 / 15  # a code may be half a step beyond the largest that `steps` counts
        assert (error.max(axis=1) <= allowed * codes * (1 + 1e-6) + LEAST)[fine].all()


@of(*LEGACY)
@settings(max_examples=20, deadline=None)
@given(x=finite_rows(32))
def test_blocks_with_one_scale(name: str, to: str, x: np.ndarray) -> None:
    check_legacy(name, to, x)


@of(*LEGACY)
def test_many_blocks_with_one_scale(name: str, to: str) -> None:
    check_legacy(name, to, seeded(5, 400, 32))


def powers(x: np.ndarray) -> np.ndarray:
    """Return the exponent of the largest power of two not above each block's largest weight."""
    return np.frexp(np.abs(x).max(axis=1).astype(float))[1] - 1


def check_mxfp4(name: str, x: np.ndarray) -> None:
    """MXFP4: values 0, 1/2, 1, 3/2, 2, 3, 4, 6 times 2^E, E = floor(log2 amax) - 2.

    The largest weight is at least 4 and less than 8 units. Between values a weight is half a gap
    off, a unit at most; above 6 it is cut off. (log2f may be one too high just below a power of
    two; then units are twice as large, the largest weight is 4 of them, and half a gap is 1 of
    the old.) The stored byte E + 127 holds every E from -127 on, so that amax has to be 2^-125.
    """
    _, values = written(name, "ggml.mxfp4", x)
    amax = np.abs(x).max(axis=1)
    encoding = by_id("ggml.mxfp4")
    assert issubclass(encoding, BlockEncoding)
    verdict = settle(x, encoding)
    assert not verdict.overflow.any()
    lost = x.any(axis=1) & ~values.any(axis=1)
    if name == "ggml":
        assert np.array_equal(lost, verdict.lost)
        assert (amax[lost] < 2.0**-125).all()
    held = amax >= 2.0**-125
    unit = np.ldexp(1.0, powers(x) - 2)[:, None]
    error = np.abs(values - x)
    allowed = np.maximum(unit, np.abs(x.astype(float)) - 6 * unit)
    assert (error <= allowed + LEAST)[held].all()
    assert not values[amax == 0].any()


@of("ggml.mxfp4")
@settings(max_examples=25, deadline=None)
@given(x=finite_rows(32))
def test_blocks_with_a_power_of_two(name: str, to: str, x: np.ndarray) -> None:
    check_mxfp4(name, x)


@of("ggml.mxfp4")
def test_many_blocks_with_a_power_of_two(name: str, to: str) -> None:
    check_mxfp4(name, seeded(6, 400, 32))


@of("f16", "bf16")
@settings(max_examples=25, deadline=None)
@given(x=finite_rows(64))
def test_types_without_a_scale(name: str, to: str, x: np.ndarray) -> None:
    """Half a unit in the last place: relative 2^-11 (bf16: 2^-8), and half the least subnormal."""
    encoding = by_id(to)
    assert issubclass(encoding, PlainEncoding)
    values = encoding.dequantize(all_engines()[name].quantize(x, to).reshape(-1)).reshape(x.shape)
    least, most = plain_limits(encoding)
    sizes = np.abs(x).astype(float)
    assert np.array_equal(np.isinf(values), sizes >= most)
    assert np.array_equal(values == 0, sizes <= least)
    relative, absolute = (2.0**-11, 2.0**-25) if to == "f16" else (2.0**-8, 2.0**-134)
    kept = sizes < most
    error = np.abs(values[kept].astype(float) - x[kept])
    assert (error <= np.maximum(relative * sizes[kept], absolute)).all()
    assert np.array_equal(np.signbit(values), np.signbit(x))


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_row_is_drawn_and_finite(seed: int) -> None:
    x = seeded(seed, 20, 256)
    assert np.isfinite(x).all()
    assert (x == np.finfo(np.float32).max).any()
    assert ((np.abs(x) < 2.0**-126) & (x != 0)).any()
    assert ((x == 0) & np.signbit(x)).any()

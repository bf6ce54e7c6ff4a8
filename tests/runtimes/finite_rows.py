"""Finite weights that quantizers trip over, as a hypothesis strategy."""

from __future__ import annotations

import awkward
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Floats = npt.NDArray[np.float32]
TOP = np.finfo(np.float32).max


def _denormals(rng: np.random.Generator, n: int, width: int) -> Floats:
    bits = rng.integers(0, 1 << 23, (n, width), dtype=np.uint32) >> rng.integers(0, 23, (n, 1))
    return (bits.astype(np.uint32) | _signs(rng, n, width)).view(np.float32)


def _signs(rng: np.random.Generator, n: int, width: int) -> npt.NDArray[np.uint32]:
    return rng.integers(0, 2, (n, width), dtype=np.uint32) << np.uint32(31)


def _tops(rng: np.random.Generator, n: int, width: int) -> Floats:
    """Return multiples of the largest float32 there is, itself among them."""
    x = rng.choice(np.array([1, -1, 0.5, -0.25, 1e-3, 0], np.float32), (n, width)) * TOP
    x[:, 0] = TOP
    return x


def _one_sided(rng: np.random.Generator, n: int, width: int) -> Floats:
    x = 1 + rng.random((n, width)) * rng.choice([1e-3, 0.1, 10.0], (n, 1))
    return (x * rng.choice([1e-5, 0.02, -0.02, -3.0, 1e4], (n, 1))).astype(np.float32)


def _constant(rng: np.random.Generator, n: int, width: int) -> Floats:
    sizes = np.ldexp(rng.choice([-1.0, 1.0, 1.7], (n, 1)), rng.integers(-149, 127, (n, 1)))
    return np.repeat(sizes, width, axis=1).astype(np.float32)


def _zeros(rng: np.random.Generator, n: int, width: int) -> Floats:
    return _signs(rng, n, width).view(np.float32)


def _stored_badly(rng: np.random.Generator, n: int, width: int) -> Floats:
    """Return blocks whose scale lies about where f16 ends, or between two subnormal halves."""
    scale = rng.choice([2.0**-25, 1.5 * 2**-24, 2.5 * 2**-24, 1e-5, 2.0**-14, 65519, 65520], (n, 1))
    code = rng.choice([1.0, 8, 15, 16, 31, 127, 15 * 63, 31 * 63, 32 * 128, 4 * 32], (n, 1))
    x = rng.uniform(-1, 1, (n, width)) * scale * code
    x[:, 3:4] = scale * code * rng.choice([-1, 1], (n, 1))
    return x.astype(np.float32)


def _between(rng: np.random.Generator, n: int, width: int) -> Floats:
    """Return weights of ordinary shape at every size at which scales fit f16."""
    sizes = 10.0 ** rng.uniform(-8, 7, (n, 1))
    return (rng.standard_normal((n, width)) * sizes).astype(np.float32)


MAKERS = {
    **{name: awkward.MAKERS[name] for name in awkward.FINITE_OR_INF},
    "denormals": _denormals,
    "tops": _tops,
    "one_sided": _one_sided,
    "constant": _constant,
    "zeros": _zeros,
    "stored_badly": _stored_badly,
    "between": _between,
}


def _finite(x: Floats) -> Floats:
    bits = x.view(np.uint32)
    # Clearing one bit of the exponent makes a number of what is none.
    return np.where(np.isfinite(x), bits, bits & np.uint32(0xFF7FFFFF)).view(np.float32)


def seeded(seed: int, n: int, width: int) -> Floats:
    """Return `n` rows of each kind."""
    rng = np.random.default_rng(seed)
    return _finite(np.concatenate([make(rng, n, width) for make in MAKERS.values()]))


@st.composite
def finite_rows(draw: st.DrawFn, width: int) -> Floats:
    """Draw some rows of every kind, and one row of any bits repeated to its end."""
    x = seeded(draw(st.integers(0, 2**32 - 1)), 2, width)
    raw = draw(st.binary(min_size=4, max_size=4 * width).filter(lambda raw: len(raw) % 4 == 0))
    own = np.resize(np.frombuffer(raw, "<u4"), width).astype(np.uint32).view(np.float32)
    return _finite(np.concatenate([x, own[None]]))

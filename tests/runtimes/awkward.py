"""Rows that quantizers trip over, and importance likewise; seeded, no file needed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
PAYLOADS = [0x7FC00000, 0xFFC00000, 0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0xFF812345, 0x7FE00000]
TOPS = [1, 3, 7, 8, 15, 16, 31, 32, 63, 127]


def _normal(rng: np.random.Generator, n: int, width: int) -> Floats:
    return rng.normal(0, 0.02, (n, width)).astype(np.float32)


def _scaled(rng: np.random.Generator, n: int, width: int) -> Floats:
    exponents = rng.integers(-149, 127, (n, 1))
    with np.errstate(over="ignore"):
        return np.ldexp(rng.normal(0, 1, (n, width)), exponents).astype(np.float32)


def _bits(rng: np.random.Generator, n: int, width: int) -> Floats:
    bits = rng.integers(0, 2**32, (n, width), dtype=np.uint32)
    nan = (bits & np.uint32(0x7FFFFFFF)) > 0x7F800000
    return np.where(nan, bits & np.uint32(0xFF800000), bits).view(np.float32)


def _narrow_bits(rng: np.random.Generator, n: int, width: int) -> Floats:
    """Return random mantissas and signs; exponents of a row lie close together."""
    base = rng.integers(0, 250, (n, 1))
    exponent = (base + rng.integers(0, 6, (n, width))).astype(np.uint32)
    rest = rng.integers(0, 2**24, (n, width), dtype=np.uint32)
    bits = rest >> np.uint32(1) | (rest & np.uint32(1)) << np.uint32(31)
    return (bits | exponent << np.uint32(23)).view(np.float32)


def _grid(rng: np.random.Generator, n: int, width: int) -> Floats:
    """Return multiples of half steps: ties."""
    top = rng.choice(TOPS, (n, 1))
    steps = rng.integers(-2 * top, 2 * top + 1, (n, width)) / 2
    return (steps * np.ldexp(1.0, rng.integers(-10, 10, (n, 1)))).astype(np.float32)


def _sparse(rng: np.random.Generator, n: int, width: int) -> Floats:
    x = _normal(rng, n, width)
    x[rng.random((n, width)) < rng.choice([0.5, 0.9, 0.99], (n, 1))] = 0
    x[rng.random((n, width)) < 0.1] *= np.float32(-0.0)
    return x


def _constant_runs(rng: np.random.Generator, n: int, width: int) -> Floats:
    runs = np.repeat(rng.normal(0, 1, (n, width // 16)), 16, axis=1).astype(np.float32)
    runs[rng.random((n, width)) < 0.02] *= 3
    return runs


def _outliers(rng: np.random.Generator, n: int, width: int) -> Floats:
    x = _normal(rng, n, width)
    huge = np.array([6e6, -6e6, 1e30, 3.4028235e38, -3.4028235e38, 1e-40], np.float32)
    where = rng.random((n, width)) < 0.01
    x[where] = rng.choice(huge, int(where.sum()))
    return x


def _not_finite(rng: np.random.Generator, n: int, width: int) -> Floats:
    x = _normal(rng, n, width)
    kinds = np.array([*PAYLOADS, 0x7F800000, 0xFF800000], np.uint32).view(np.float32)
    few = rng.choice(kinds, (n, 2))
    where = rng.random((n, width)) < rng.choice([0.003, 0.02, 0.3], (n, 1))
    x[where] = few[np.nonzero(where)[0], rng.integers(0, 2, int(where.sum()))]
    return x


MAKERS = {
    "normal": _normal,
    "scaled": _scaled,
    "bits": _bits,
    "narrow_bits": _narrow_bits,
    "grid": _grid,
    "sparse": _sparse,
    "constant_runs": _constant_runs,
    "outliers": _outliers,
    "not_finite": _not_finite,
}
FINITE_OR_INF = [name for name in MAKERS if name != "not_finite"]


def rows(kind: str, seed: int, n: int, width: int = 256) -> Floats:
    """Return `n` rows of one kind."""
    return np.ascontiguousarray(MAKERS[kind](np.random.default_rng(seed), n, width))


def mixed(seed: int, n: int, width: int = 256) -> Floats:
    """Return `n` rows of every kind in turn."""
    each = -(-n // len(MAKERS))
    return np.concatenate([rows(kind, seed, each, width) for kind in MAKERS])[:n]


def importance(kind: str, seed: int, width: int = 256) -> Floats:
    """Return an importance vector."""
    rng = np.random.default_rng(seed)
    weights = rng.gamma(0.5, 1.0, width).astype(np.float32)
    match kind:
        case "zero":
            weights[:] = 0
        case "third_zero":
            weights[rng.random(width) < 0.33] = 0
        case "negative":
            weights[rng.random(width) < 0.2] *= -1
        case "large":
            weights *= np.float32(1e30)
        case "small":
            weights *= np.float32(1e-38)
        case "nan":
            weights[width // 3] = np.nan
        case "inf":
            weights[width // 5] = np.inf
    return weights


IMPORTANCE = ["usual", "zero", "third_zero", "negative", "large", "small", "nan", "inf"]

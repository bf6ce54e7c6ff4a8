"""Inputs to run on a device, few and well chosen.

| rows | what they show |
|---|---|
| zeros | the bias, and nothing else |
| one-hot, 2^10 at features 2i, 2i + 1 | one column, no sum: exact on any accumulator |
| random | every column at once; a hash of the whole weight |
| loud, 2^15 * sign of the weights of one channel | an f16 accumulator overflows |
| NaN in one feature | whether NaN is hidden |

A one-hot of 1 drowns in the bias: with weights of 0.02 and a bias of 0.1 half of the outputs do
not give the rounded weight back; at 2^10 nearly all do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.inputs import spread_over
from qassay.comparison.attribution.setup import Floats, Setup
from qassay.runtimes.sophgo.bfloat16 import bf16

_PAIRS = 20
_RANDOM = 8
_F16_MOST = 65504.0


@dataclass(frozen=True, slots=True, eq=False)
class Probes:
    """Inputs.

    Attributes:
        x: float32 `[M, K]`, values of bf16, all in the range of f16.
        kinds: What each row is: `zeros`, `one-hot 17`, `random`, `loud`, `nan`.
        decode: Which rows are to be run one by one, too.
    """

    x: Floats
    kinds: tuple[str, ...]
    decode: tuple[int, ...]


def probes(setup: Setup, *, seed: int = 0, pairs: int = _PAIRS, random: int = _RANDOM) -> Probes:
    """Return the inputs for one Linear; the same for the same weights and seed."""
    k = setup.k
    rng = np.random.default_rng(seed)
    weight = setup.weight()
    finite = np.where(np.isfinite(weight), weight, 0)
    largest = float(np.abs(finite).max(initial=0))
    level = 2.0**10
    while level > 1 and largest * level > _F16_MOST / 4:
        level /= 2
    kinds, rows = ["zeros"], [np.zeros((1, k), np.float32)]
    columns = one_hot_columns(k, setup.g, pairs)
    hot = np.zeros((len(columns), k), np.float32)
    hot[np.arange(len(columns)), columns] = level
    rows.append(hot)
    kinds += [f"one-hot {column}" for column in columns]
    rows.append(bf16(rng.standard_normal((random, k)).astype(np.float32)))
    kinds += ["random"] * random
    loudest = int(np.argmax(np.abs(finite).sum(axis=1))) if setup.n else 0
    sign = np.where(finite[loudest] < 0, -1, 1).astype(np.float32)
    rows.append((sign * np.float32(2**15))[None])
    lost = bf16(rng.standard_normal((1, k)).astype(np.float32))
    lost[0, k // 2] = np.nan
    rows.append(lost)
    kinds += ["loud", "nan"]
    first_random = 1 + len(columns)
    decode = tuple(dict.fromkeys((0, 1, first_random - 1, first_random,
                                  first_random + random - 1, len(kinds) - 1)))  # fmt: skip
    return Probes(np.concatenate(rows), tuple(kinds), decode)


def one_hot_columns(k: int, groups: int, pairs: int) -> npt.NDArray[np.intp]:
    """Return pairs of columns 2i, 2i + 1, spread over the groups at varied offsets.

    First and last are among them.
    """
    if k <= 2 * pairs:
        return np.arange(k)
    half = k // 2
    even = spread_over(half, pairs)
    size = max(1, half // max(1, groups))
    shift = (np.arange(len(even)) * 5) % max(1, min(size, half // len(even)))
    shift[[0, -1]] = 0
    even = np.unique(np.clip(even + shift, 0, half - 1))
    return np.sort(np.concatenate([2 * even, 2 * even + 1]))

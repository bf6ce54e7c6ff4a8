"""Outputs of ggml's and candle's CPU paths, which quantize activations first: bit for bit.

Their arithmetic is not that of a matrix product: activations become Q8_0, Q8_1 or Q8_K, blocks are
multiplied in integers. An output that is just that is explained; nothing is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qassay.comparison.attribution.attribute import Problem
from qassay.comparison.attribution.evidence import Fit
from qassay.comparison.attribution.predict import weight_rms
from qassay.comparison.attribution.setup import Floats
from qassay.comparison.attribution.verdict import Attribution, Verdict
from qassay.core.errors import UsageError
from qassay.core.finding import Certainty
from qassay.runtimes.linear import Matrix, linear

_PROGRAMS = {"ggml:cpu": "ggml's CPU path", "candle:cpu": "candle's CPU path"}
_ORDER = np.float32(2**-18)
"""By this share of |x| * rms(w) another order of float32 sums may differ; int8 activations make
differences a thousand times as large."""


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """An output that a program's arithmetic gives.

    Attributes:
        told: Explained, or rounding where only the order of sums is another one.
        way: Which program, in words.
        output: What it gives, `[M, N]`.
    """

    told: Attribution
    way: str
    output: Floats


@np.errstate(all="ignore")
def explained_by_program(problem: Problem, matrix: Matrix) -> Explained | None:
    """Return the program whose arithmetic gives an output, None where none does.

    Rows with NaN or infinite inputs have to be what the program makes of them, too.
    """
    x, y, true = problem.x, problem.y, problem.true
    finite = np.isfinite(x).all(axis=1, keepdims=True)
    if y.shape[1] != true.n or not (finite & (x != 0)).any():
        return None  # of zeros every program makes the same
    length = np.linalg.norm(np.where(finite, x, 0), axis=1, keepdims=True)
    allowed = (length * weight_rms(true.weight())).astype(np.float32) * _ORDER
    near: Explained | None = None
    for path, program in _PROGRAMS.items():
        try:
            p = linear(x, matrix, on=path)
        except UsageError:
            continue  # it multiplies no such type
        p = p if true.bias is None else p + true.bias
        same = (y == p) | (np.isnan(y) & np.isnan(p))
        ulp = np.spacing(np.maximum(np.abs(y), np.abs(p)).astype(np.float32))
        if not (same | (np.abs(y - p) <= np.maximum(allowed, ulp))).all():
            continue
        fit = Fit(y.size, int(np.count_nonzero(same)), 0, even=True)
        way = f"{program}, which quantizes activations to 8 bits first"
        if fit.share_equal >= 0.99:
            return Explained(Attribution(Verdict.EXPLAINED, clean=fit), way, p)
        told = Attribution(Verdict.ROUNDING, Certainty.LIKELY, clean=fit)
        near = near or Explained(told, f"{way}, with sums in another order", p)
    return near

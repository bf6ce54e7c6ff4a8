"""Values that are not finite: hidden, born, or an accumulator that overflowed. Before all else.

An f16 accumulator overflows where the sum leaves its range: every new infinity has
sum |x * w| above 60000, one of them at least a true sum above 65504, and no output that stayed
finite is beyond 65536 (65504 rounded to bf16).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.inputs import Inputs
from qassay.comparison.attribution.predict import predict
from qassay.comparison.attribution.setup import Floats, Setup, quick_bf16
from qassay.comparison.attribution.verdict import NonFinite
from qassay.runtimes.sophgo.arithmetic import Model

Mask = npt.NDArray[np.bool_]

_F16_MOST = 65504.0
_F16_REACHED = 60000.0
_F16_AS_BF16 = 65536.0


@np.errstate(all="ignore")
def look(
    true: Setup, x: Floats, y: Floats, models: tuple[Model, ...], seen: Mask | None = None
) -> tuple[NonFinite, Mask, Mask]:
    """Return what is not finite, which rows are left to judge, and which outputs in them count.

    Args:
        true: The Linear as it should be.
        x: All inputs, `[M, K]`.
        y: All outputs, `[M, N]`.
        models: Arithmetics.
        seen: Which outputs there are at all; None: all.
    """
    finite_rows: Mask = np.asarray(np.isfinite(x).all(axis=1))
    expected_rows = ~finite_rows
    hidden = np.zeros(y.shape, bool)
    expected = 0
    zeroed = False
    if expected_rows.any():
        lost = x[expected_rows]
        should = _product(true, lost)
        gone = ~np.isfinite(should)
        expected = int(np.count_nonzero(gone))
        hidden[expected_rows] = gone & np.isfinite(y[expected_rows])
        if hidden.any():
            zeros = Inputs(np.where(np.isfinite(lost), lost, 0).astype(np.float32), true.k)
            here = hidden[expected_rows]
            got = y[expected_rows]
            zeroed = any(bool((p == got)[here].all()) for _, p in predict(true, zeros, models))
    known = np.isfinite(y)
    if seen is not None:
        hidden &= seen
        known &= seen
    rows = np.flatnonzero(finite_rows)
    born = np.zeros(y.shape, bool)
    overflow = False
    if len(rows):
        inputs = Inputs(x[rows], true.k)
        clean = next(iter(predict(true, inputs, models)))[1]
        sound = np.isfinite(clean)
        expected += int(np.count_nonzero(~sound))
        hidden[rows] |= ~sound & known[rows]
        born[rows] = sound & ~np.isfinite(y[rows])
        known[rows] &= sound
        if seen is not None:
            hidden &= seen
            born &= seen
        overflow = bool(born.any()) and _overflowed(true, inputs, y[rows], born[rows])
    first = next(iter(np.argwhere(hidden | born)), None)
    done = NonFinite(
        hidden=int(np.count_nonzero(hidden)),
        born=int(np.count_nonzero(born)),
        overflow=overflow,
        zeroed=zeroed,
        expected=expected,
        where=None if first is None else (int(first[0]), int(first[1])),
    )
    return done, finite_rows, known


def _product(true: Setup, x: Floats) -> npt.NDArray[np.float64]:
    product: npt.NDArray[np.float64] = x.astype(np.float64) @ true.weight().astype(np.float64).T
    return product


def _overflowed(true: Setup, inputs: Inputs, y: Floats, born: Mask) -> bool:
    weight = true.weight().astype(np.float64)
    x = quick_bf16(inputs.x).astype(np.float64)
    reach = np.abs(x) @ np.abs(weight).T
    total = x @ weight.T
    if true.bias is not None:
        reach += np.abs(true.bias)
        total += true.bias
    finite = np.abs(y[np.isfinite(y)])
    return bool(
        (reach[born] > _F16_REACHED).all()
        and (np.abs(total[born]) > _F16_MOST).any()
        and (not finite.size or float(finite.max()) <= _F16_AS_BF16)
    )

"""What kind of input each row is: errors of unlike rows do not belong into one mean.

A loud row is some 2^15 times as large as a random one, a one-hot of 2^10 still 64 times: in one
RMS, or one signal to noise ratio, they would be all that is seen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.setup import Floats

Mask = npt.NDArray[np.bool_]

_LOUD = 100.0
"""A row is loud whose length is beyond this many times the median of rows with several features."""


def kinds_of_rows(x: Floats) -> dict[str, Mask]:
    """Return which rows are of each kind, for kinds that occur.

    Args:
        x: Inputs, `[M, K]`.

    Returns:
        `zeros`, `one feature`, `several features`, `loud`, `not finite`: bool `[M]`, disjoint.
    """
    finite: Mask = np.asarray(np.isfinite(x).all(axis=1))
    known = np.where(finite[:, None], x, 0).astype(np.float64)
    counts = np.count_nonzero(known, axis=1)
    lengths = np.linalg.norm(known, axis=1)
    dense = finite & (counts > 1)
    usual = float(np.median(lengths[dense])) if dense.any() else 0.0
    loud = dense & (lengths > _LOUD * usual)
    found = {
        "zeros": finite & (counts == 0),
        "one feature": finite & (counts == 1),
        "several features": dense & ~loud,
        "loud": loud,
        "not finite": ~finite,
    }
    return {kind: mask for kind, mask in found.items() if mask.any()}


def usual_rows(kinds: dict[str, Mask], rows: int) -> Mask:
    """Return the rows that errors are told of: neither loud nor with NaN; all if all are."""
    odd = np.zeros(rows, bool)
    for kind in ("loud", "not finite"):
        if kind in kinds:
            odd |= kinds[kind]
    usual: Mask = ~odd
    return usual if usual.any() else ~usual

"""What an output that no fault explains looks like: mistakes on the way from the device to a file.

Each is told beside the verdict, which stays "not explained": none of them says what the device
did, only what to look at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_NEAR = 0.02
"""Relative error (of an average row) up to which outputs count as the same."""
_FAR = 0.05
"""Beyond which they count as others."""
_MOST_ROWS = 1024


@np.errstate(all="ignore")
def signs(
    quantized: npt.NDArray[np.floating[Any]],
    device: npt.NDArray[np.floating[Any]],
    dtype: np.dtype[Any] | None = None,
) -> Iterator[str]:
    """Yield what the outputs of a device look like, in words; most often nothing.

    Args:
        quantized: What the weights give, `[M, N]`.
        device: What came out, `[M, N]`.
        dtype: In which the outputs were stored.
    """
    q, y = np.asarray(quantized, np.float64), np.asarray(device, np.float64)
    if not y.size or q.shape != y.shape:
        return
    if (y == y.flat[0]).all():
        yield (
            f"every output is {y.flat[0]:.6g}: was this buffer ever written, and is it the tensor"
            " that was meant?"
        )
        return
    whole = q.shape
    fine = np.isfinite(q).all(axis=1) & np.isfinite(y).all(axis=1) & q.any(axis=1)
    if dtype is not None and dtype.kind in "iu" and dtype != np.uint16:
        yield f"the outputs are {dtype}: accumulators or codes, which still need their scales?"
    rows = np.flatnonzero(fine)
    q, y = q[rows], y[rows]
    if not len(rows) or _error(q, y) < _FAR:
        return
    factor = float((q * y / _sizes(q)).sum() / (q * q / _sizes(q)).sum())
    if abs(factor) > 1e-12 and _error(q * factor, y) < _NEAR:
        yield (
            f"the outputs are {factor:.6g} times what the weights give, about: is a scale left out,"
            " or applied twice?"
        )
    elif _error(np.maximum(q, 0), y) < _NEAR:
        yield "the outputs are what a ReLU behind the Linear makes of them: take them before it"
    elif len(rows) == whole[0] and _error(q, y.reshape(whole[::-1]).T) < _NEAR:
        yield (
            f"the numbers lie as [{whole[1]}, {whole[0]}], channels first: transpose them to"
            f" [{whole[0]}, {whole[1]}]"
        )
    else:
        yield from _of_rows(q, y, rows)


def _sizes(q: Doubles) -> Doubles:
    sizes: Doubles = np.maximum(np.square(q).sum(axis=1, keepdims=True), 1e-300)
    return sizes


def _error(q: Doubles, y: Doubles) -> float:
    """Return the error of an average row, relative to the row: loud rows count as others do."""
    return float(np.sqrt((np.square(y - q).sum(axis=1, keepdims=True) / _sizes(q)).mean()))


def _of_rows(q: Doubles, y: Doubles, rows: npt.NDArray[np.intp]) -> Iterator[str]:
    """Tell rows that are those of other inputs."""
    if not 2 <= len(rows) <= _MOST_ROWS:
        return
    one, two = q / np.sqrt(_sizes(q)), y / np.sqrt(_sizes(y))
    likely = (two @ one.T).argmax(axis=1)
    away = np.flatnonzero(likely != np.arange(len(rows)))
    if not len(away) or _error(q[likely], y) >= _NEAR:
        return
    some = ", ".join(f"row {rows[at]} holds that of row {rows[likely[at]]}" for at in away[:3])
    more = ", ..." if len(away) > 3 else ""
    yield (
        f"{len(away):,} of {len(rows):,} rows are those of other inputs: {some}{more}: were they"
        " brought back in another order, or run with another file of inputs?"
    )

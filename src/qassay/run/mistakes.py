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
            f"every output is {y.flat[0] + 0.0:.6g}: was this buffer ever written, and is it"
            " the tensor that was meant?"
        )
        return
    turned = _is_turned(q, y)
    rows_of_q, whole = q, q.shape
    fine = np.isfinite(q).all(axis=1) & np.isfinite(y).all(axis=1) & q.any(axis=1)
    if dtype is not None and dtype.kind in "iu" and dtype != np.uint16:
        yield f"the outputs are {dtype}: accumulators or codes, which still need their scales?"
    q, sent = q[fine], y[fine]
    if not len(q) or _error(q, sent) < _FAR:
        return
    factor = float((q * sent / _sizes(q)).sum() / (q * q / _sizes(q)).sum())
    if abs(factor) > 1e-12 and _error(q * factor, sent) < _NEAR:
        yield (
            f"the outputs are {factor:.6g} times what the weights give, about: is a scale left out,"
            " or applied twice?"
        )
    elif _error(np.maximum(q, 0), sent) < _NEAR:
        yield "the outputs are what a ReLU behind the Linear makes of them: take them before it"
    elif turned:
        yield (
            f"the numbers lie as [{whole[1]}, {whole[0]}], channels first: transpose them to"
            f" [{whole[0]}, {whole[1]}]"
        )
    else:
        yield from _of_rows(rows_of_q, y)


def _sizes(q: Doubles) -> Doubles:
    sizes: Doubles = np.maximum(np.square(q).sum(axis=1, keepdims=True), 1e-300)
    return sizes


def _error(q: Doubles, y: Doubles) -> float:
    """Return the error of an average row, relative to the row: loud rows count as others do."""
    return float(np.sqrt((np.square(y - q).sum(axis=1, keepdims=True) / _sizes(q)).mean()))


@np.errstate(all="ignore")
def _is_turned(q: Doubles, y: Doubles) -> bool:
    """Tell whether the numbers lie as `[N, M]`, values that are not finite aside."""
    turned = y.reshape(q.shape[::-1]).T
    known = np.isfinite(q) & np.isfinite(turned)
    if 1 in q.shape or 2 * np.count_nonzero(known) < q.size:
        return False
    return _error(np.where(known, q, 0), np.where(known, turned, 0)) < _NEAR


@np.errstate(all="ignore")
def _of_rows(q: Doubles, y: Doubles) -> Iterator[str]:
    """Tell rows that are those of other inputs, where that is true of nearly every row."""
    known = np.flatnonzero(np.isfinite(q).all(axis=1) & q.any(axis=1))
    seen = np.flatnonzero(np.isfinite(y).all(axis=1) & y.any(axis=1))
    if not 2 <= len(known) <= _MOST_ROWS or len(seen) < 2:
        return
    one, two = q[known] / np.sqrt(_sizes(q[known])), y[seen] / np.sqrt(_sizes(y[seen]))
    likely = known[(two @ one.T).argmax(axis=1)]
    gaps = np.square(y[seen] - q[likely]).sum(axis=1) / _sizes(q[likely])[:, 0]
    alike = gaps < _NEAR**2
    away = np.flatnonzero(alike & (likely != seen))
    if len(away) < 2 or np.count_nonzero(alike) < 0.9 * len(seen):
        return
    some = ", ".join(f"row {seen[at]} holds that of row {likely[at]}" for at in away[:3])
    more = ", ..." if len(away) > 3 else ""
    yield (
        f"{len(away):,} of {len(seen):,} rows are those of other inputs: {some}{more}: were they"
        " brought back in another order, or run with another file of inputs?"
    )

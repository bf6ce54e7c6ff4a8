"""How the codes and zero points of a layer are distributed, over a fixed sample of its rows.

Codes that were read in a wrong order, or with zero points of another convention, give weights
that look like weights; what gives them away is where they lie together. So the mean code of a
group is set against its zero point, as read and as it would be in the other order of lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from qassay.core.stats import Histogram, LayerMoments
from qassay.encodings.layers.base import Layer, Role
from qassay.encodings.layers.canonical import Canonical
from qassay.encodings.layers.layout import CodeLayout, Form
from qassay.kernels.layer_codes import code_range, count_canonical, folded
from qassay.kernels.layer_index import GroupIndex
from qassay.kernels.select import Kernels

Index = npt.NDArray[np.int64]

SAMPLE = 1 << 16
"""Weights that are looked at in a large layer."""
FULL_SAMPLE = 1 << 18
"""The same with full statistics."""
MOST_COLUMNS = 1 << 22
"""Rows longer than this are not unpacked."""
_RUNS = 2
_EIGHT = 8
_AWQ = np.array([0, 2, 4, 6, 1, 3, 5, 7])
_SWAPPED = np.array([1, 0, 3, 2, 5, 4, 7, 6])
_AT_ONCE = 1 << 18


def sample_rows(layer: Layer, most: int) -> list[tuple[int, int]]:
    """Return runs of rows: all, or two runs of whole eights, the first and the last."""
    total = layer.total_rows
    if total * layer.columns <= most or total <= _RUNS * _EIGHT:
        return [(0, total)]
    length = max(_EIGHT, most // layer.columns // _RUNS // _EIGHT * _EIGHT)
    if _RUNS * length >= total:
        return [(0, total)]
    gap = (total - length) // (_RUNS - 1) // _EIGHT * _EIGHT
    return [(at * gap, at * gap + length) for at in range(_RUNS)]


@dataclass(slots=True)
class _Sums:
    """What is added up over the sample, in whole numbers: the order does not matter."""

    codes: Index | None = None
    zeros: Index | None = None
    rows: int = 0
    groups: int = 0
    low: int = 0
    possible: int = 0
    lowest: int = 0
    highest: int = 0
    means: list[npt.NDArray[np.float64]] = field(default_factory=list)
    points: list[npt.NDArray[np.int16]] = field(default_factory=list)


def moments(
    layer: Layer, layout: CodeLayout | None, index: GroupIndex, kernels: Kernels, most: int
) -> tuple[LayerMoments, Index] | None:
    """Return how a layer's codes are distributed, and how often each of them occurs.

    Args:
        layer: The layer.
        layout: How its codes are packed, where that is known.
        index: Which columns each group has.
        kernels: What counts the zero points.
        most: About how many weights to look at.

    Returns:
        None for rows that are too long to unpack.
    """
    if layer.columns > MOST_COLUMNS:
        return None
    sums = _Sums()
    stored = any(layer.encoding.part(name).role is Role.ZERO for name in layer.parts)
    for start, stop in _pieces(layer, sample_rows(layer, most)):
        canonical = layer.encoding.unpack(layer, start, stop)
        _add(sums, canonical, layer, index, kernels, stored=stored)
    complete = sums.rows == layer.total_rows
    exact = _all_zeros(layer, layout, kernels)
    zeros = exact if exact is not None else sums.zeros
    assert sums.codes is not None  # noqa: S101 - a layer has rows
    numbers = _numbers(sums, layer, layout) if sums.means else {}
    found = LayerMoments(
        rows=sums.rows,
        groups=sums.groups,
        complete=complete,
        lowest_code=sums.low,
        possible_codes=sums.possible,
        zeros=None if zeros is None else Histogram.of_dense(zeros),
        zeros_complete=zeros is not None and (exact is not None or complete),
        lowest=sums.lowest / max(1, sums.groups),
        highest=sums.highest / max(1, sums.groups),
        **numbers,
        **_indexed(layer, index),
    )
    return found, sums.codes


def _pieces(layer: Layer, runs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    step = max(_EIGHT, _AT_ONCE // layer.columns // _EIGHT * _EIGHT)
    for start, stop in runs:
        for begin in range(start, stop, step):
            yield begin, min(begin + step, stop)


def _add(
    sums: _Sums,
    canonical: Canonical,
    layer: Layer,
    index: GroupIndex,
    kernels: Kernels,
    *,
    stored: bool,
) -> None:
    """Add some rows."""
    counts = count_canonical(canonical, layer.bits, kernels)
    sums.codes = counts if sums.codes is None else sums.codes + counts
    sums.low, sums.possible = code_range(canonical.codes, layer.bits)
    rows = canonical.codes.shape[0]
    sums.rows += rows
    filled = np.flatnonzero(np.diff(index.starts) > 0)
    sums.groups += rows * filled.size
    if canonical.table is not None or filled.size == 0:
        return
    codes = canonical.codes if index.natural else canonical.codes[:, index.columns]
    starts = index.starts[filled]
    least, most = _ends(codes, starts)
    sums.lowest += int((least == sums.low).sum())
    sums.highest += int((most == sums.low + sums.possible - 1).sum())
    total = np.add.reduceat(codes, starts, axis=1, dtype=np.int64)
    sums.means.append(total / np.diff(index.starts)[filled])
    if canonical.zeros is not None:
        points = canonical.zeros
        if canonical.row_groups is not None:
            points = points[canonical.row_groups]
        sums.points.append(points[:, filled])
        if stored:
            offset = int(layer.options.get("zero_offset", 0))
            mask = 255 if canonical.codes.dtype.kind == "i" else (1 << layer.bits) - 1
            seen = np.bincount(((points - offset) & mask).reshape(-1), minlength=mask + 1)
            sums.zeros = seen if sums.zeros is None else sums.zeros + seen


def _ends(codes: npt.NDArray[Any], starts: Index) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return np.minimum.reduceat(codes, starts, axis=1), np.maximum.reduceat(codes, starts, axis=1)


def _all_zeros(layer: Layer, layout: CodeLayout | None, kernels: Kernels) -> Index | None:
    """Return how often each zero point is stored, where their bytes alone tell that."""
    if layout is None or layout.zeros is None:
        return None
    stored = layer.parts[layout.zeros.part]
    entries = layer.groups * -(-layer.rows // layer.group_rows)
    if (stored.nbytes or 0) * 8 != entries * layout.zeros.bits:  # padding among them
        return None
    counts = kernels.count_bytes(stored.raw())
    if layout.zeros.bits == 8:
        return np.roll(counts, layout.zeros.offset) if layout.form is not Form.BYTES else counts
    return folded(counts, CodeLayout(Form.NIBBLES))


def _numbers(sums: _Sums, layer: Layer, layout: CodeLayout | None) -> dict[str, Any]:
    """Return the means and correlations, of numbers that are added in the order of the rows."""
    means = np.concatenate(sums.means)
    mean = float(means.mean())
    if not sums.points:
        return {"mean_code": mean, "bias": mean}
    points = np.concatenate(sums.points).astype(np.float64)
    told: dict[str, float | None] = {"as_read": _pearson(points, means)}
    whole = points.shape[0] // _EIGHT * _EIGHT
    if layout is not None and whole:
        lanes = np.array(layout.lanes)
        if layout.form is Form.LANES:
            # Channel lanes[i] was read from nibble i; in natural order that is channel i.
            told["codes_reordered"] = _pearson(points[:whole], _moved(means[:whole], lanes))
            swapped = lanes[_SWAPPED][np.argsort(lanes)]
            told["codes_swapped"] = _pearson(points[:whole], _moved(means[:whole], swapped))
        zeros = layout.zeros
        if zeros is not None and zeros.bits == 4 and layer.group_rows == 1:
            natural = zeros.lanes == tuple(range(_EIGHT))
            other = np.argsort(_AWQ) if natural else np.array(zeros.lanes)
            told["zeros_reordered"] = _pearson(_moved(points[:whole], other), means[:whole])
            order = np.array(zeros.lanes)
            swapped = order[_SWAPPED][np.argsort(order)]
            told["zeros_swapped"] = _pearson(_moved(points[:whole], swapped), means[:whole])
    away = means - points
    bias = float(away.mean())
    return {
        "mean_code": mean,
        "mean_zero": float(points.mean()),
        "bias": bias,
        "usual_bias": float(np.median(away)),
        "near_bias": float((np.abs(away - bias) <= 1).mean()),
        "correlation": {name: value for name, value in told.items() if value is not None},
    }


def _indexed(layer: Layer, index: GroupIndex) -> dict[str, Any]:
    """Return what is known of an index that assigns columns to groups."""
    if not any(layer.encoding.part(name).role is Role.INDEX for name in layer.parts):
        return {}
    sizes = np.diff(index.starts)
    last = layer.columns - layer.group * (layer.groups - 1)
    wanted = np.full(sizes.size, layer.group)
    wanted[-1] = last
    return {
        "in_order": index.natural,
        "uneven": int((sizes != wanted).sum()),
        "index_digest": crc32(np.ascontiguousarray(index.columns, "<i8").tobytes()),
    }


def _moved(values: npt.NDArray[np.float64], order: Index) -> npt.NDArray[np.float64]:
    """Return rows, eight by eight, in another order."""
    eights = values.reshape(-1, _EIGHT, values.shape[1])
    return eights[:, order].reshape(values.shape)


def _pearson(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float | None:
    """Return the correlation; None where one of the two does not vary."""
    left, right = one - one.mean(), other - other.mean()
    size = float((left * left).sum() * (right * right).sum())
    if size <= 0 or not np.isfinite(size):
        return None
    return float((left * right).sum() / np.sqrt(size))

"""From the exact histogram of a scale field to the numbers a report prints."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from qassay.core.stats import Histogram, ScaleStats
from qassay.encodings.fields import Health, ScaleField


def summarize(histogram: Histogram, scale: ScaleField) -> ScaleStats:
    """Return counts, extremes and the median magnitude of a scale field."""
    health = scale.health[histogram.patterns]
    with np.errstate(invalid="ignore"):  # signalling NaN
        magnitudes = np.abs(scale.magnitudes[histogram.patterns].astype(np.float64))
    usable = (health & int(Health.NOT_FINITE | Health.ZERO)) == 0
    order = np.argsort(magnitudes[usable], kind="stable")
    sizes = magnitudes[usable][order]
    reached = np.cumsum(histogram.counts[usable][order])
    median = None
    if sizes.size:
        median = float(sizes[np.searchsorted(reached, (int(reached[-1]) + 1) // 2)])

    def count(flag: Health) -> int:
        return int(histogram.counts[(health & int(flag)) > 0].sum())

    return ScaleStats(
        blocks=histogram.total,
        min_nonzero=float(sizes[0]) if sizes.size else None,
        max=float(sizes[-1]) if sizes.size else None,
        median=median,
        zero=count(Health.ZERO),
        subnormal=count(Health.SUBNORMAL),
        nonfinite=count(Health.NOT_FINITE),
        negative=count(Health.NEGATIVE),
    )


def total(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms of one kind of field."""
    return Histogram.sum(list(histograms))

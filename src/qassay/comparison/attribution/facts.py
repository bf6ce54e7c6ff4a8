"""What `qassay diagnose` knows when it is done: for rules and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.setup import Floats
from qassay.comparison.attribution.verdict import Attribution
from qassay.comparison.profile import Histogram, along, histogram

_WORST = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """How two outputs of one Linear differ, values that are not finite left out.

    Attributes:
        elements: How many outputs both have finite.
        not_finite: How many are finite on one side only, or on neither.
        largest: Largest absolute difference.
        rms: Root mean square difference.
        relative: `rms` as a share of the reference's own root mean square.
        cosine: Of the angle between both.
        snr: Signal to noise ratio in dB, None where they are equal.
        channels: The worst output channels: number, RMS difference, share of its own RMS.
        spread: Median, 95th and 100th percentile of the channels' relative differences.
        profile: RMS differences along the channels, in few numbers.
        histogram: How often differences of each size occur, in `rms`; None where all are equal.
    """

    elements: int
    not_finite: int
    largest: float
    rms: float
    relative: float
    cosine: float
    snr: float | None
    channels: tuple[tuple[int, float, float], ...]
    spread: tuple[float, float, float]
    profile: dict[str, Any] = field(default_factory=dict)
    histogram: Histogram | None = None


@dataclass(frozen=True, slots=True, eq=False)
class KindErrors:
    """Differences of one kind of row: `one feature`, `several features`, `loud`, ...

    Attributes:
        kind: What kind.
        rows: How many rows.
        quantization: As in `Outcome`.
        device: As in `Outcome`.
        total: As in `Outcome`.
    """

    kind: str
    rows: int
    quantization: Difference | None
    device: Difference
    total: Difference | None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One pair of inputs and outputs.

    Attributes:
        name: Of the arrays: `prefill`, `decode`, `linear0_f32`.
        rows: M.
        told: What explains the outputs.
        quantization: Quantized reference against float reference, where there is one.
        device: Device against quantized reference.
        total: Device against float reference.
        ways: Where the arithmetic that explains them is used: chips, versions, paths.
        elements: Outputs of all rows; the differences leave out loud rows and those with NaN.
        told_rows: How many rows the differences are of.
        by_kind: The differences of each kind of row, where there are several.
    """

    name: str
    rows: int
    told: Attribution
    quantization: Difference | None
    device: Difference
    total: Difference | None
    ways: tuple[str, ...] = ()
    elements: int = 0
    told_rows: int = 0
    by_kind: tuple[KindErrors, ...] = ()


@dataclass(slots=True, eq=False)
class Diagnosis:
    """One Linear.

    Attributes:
        layer: Its name.
        path: File of the device's outputs, as reports name it.
        weights: File of the weights, as reports name it.
        label: The encoding.
        n: Output channels.
        k: Input features.
        group: Weights of a row that share a scale, 0 where nothing is quantized.
        on: The chip and version that were named, "" where none was.
        expected: How that chip computes such a Linear, in words.
        outcomes: One for each pair of arrays.
        notes: What had to be assumed.
    """

    layer: str
    path: str
    weights: str
    label: str
    n: int
    k: int
    group: int
    on: str = ""
    expected: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@np.errstate(all="ignore")
def difference(reference: npt.NDArray[np.floating], other: Floats) -> Difference:
    """Return how `other` differs from `reference`, both `[M, N]`."""
    a, b = reference.astype(np.float64), other.astype(np.float64)
    known = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(known, a, 0), np.where(known, b, 0)
    gap = b - a
    count = max(1, int(np.count_nonzero(known)))
    power, error = float(np.sum(a * a)), float(np.sum(gap * gap))
    seen = np.maximum(known.sum(axis=0), 1)
    by_channel = np.sqrt((gap * gap).sum(axis=0) / seen)
    own = np.sqrt((a * a).sum(axis=0) / seen)
    share = by_channel / np.maximum(own, 1e-30)
    share = np.where(own > 0, share, np.where(by_channel > 0, np.inf, 0))
    order = np.argsort(-by_channel, kind="stable")[:_WORST]
    both = float(np.sqrt(power) * np.sqrt(np.sum(b * b)))
    finite = np.where(np.isfinite(share), share, 0)
    spread = [float(value) for value in np.quantile(finite, (0.5, 0.95, 1))] if finite.size else []
    rms = float(np.sqrt(error / count))
    drawn = 0 < rms < np.inf
    return Difference(
        elements=int(np.count_nonzero(known)),
        not_finite=int(np.count_nonzero(~known)),
        largest=float(np.abs(gap).max(initial=0)),
        rms=rms,
        relative=float(np.sqrt(error / power)) if power > 0 else (0.0 if not error else np.inf),
        cosine=float(np.sum(a * b)) / both if both > 0 else float(not error),
        snr=None if not error else float(10 * np.log10(max(power, 1e-300) / error)),
        channels=tuple((int(n), float(by_channel[n]), float(share[n])) for n in order
                       if by_channel[n] > 0),
        spread=(spread[0], spread[1], spread[2]) if spread else (0.0, 0.0, 0.0),
        profile=along(by_channel),
        histogram=histogram(gap[known] / rms, "rms", gap.shape[0]) if drawn else None,
    )  # fmt: skip

"""The scale-storage experiment: what it costs to put scales into a smaller type.

A block is quantized symmetrically (`d = amax / 127` for 8 bits), its scale stored in some way,
and decoded as `code * stored scale`. Three things can be chosen: how the scale is stored,
whether the codes are taken with the exact or with the stored scale, and how they are rounded.

    for row in compare(weights):              # [K], [N, K], or an iterable of such arrays
        print(row.scheme.storage, row.max_error, row.max_times_f16, row.lost)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.encodings.base import Floats
from qassay.runtimes.arithmetic import Doubles, round_away
from qassay.runtimes.scale_storage_formats import DEFAULT, storage


def _c_cast(values: Floats) -> Floats:
    """Round as `(int)(x + 0.5f)` does: right for positive numbers, toward zero for negative."""
    return np.asarray(np.trunc(values + np.float32(0.5)), np.float32)


def _nearest_even(values: Floats) -> Floats:
    return np.rint(values)


ROUNDINGS: dict[str, Callable[[Floats], Floats]] = {
    "nearest-away": round_away,
    "nearest-even": _nearest_even,
    "c-cast": _c_cast,
}
"""Ways to round codes."""

CODES_FROM = ("exact", "stored")
"""Which scale the codes are taken with."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to quantize a block.

    Attributes:
        storage: How the scale is stored (`scale_storage_formats.storage`).
        codes_from: `exact` or `stored`.
        rounding: A key of `ROUNDINGS`.
        block: Weights that share a scale.
        bits: Bits of a code; its largest value is 2^(bits - 1) - 1.
    """

    storage: str = "f16"
    codes_from: str = "exact"
    rounding: str = "nearest-away"
    block: int = 32
    bits: int = 8

    def __post_init__(self) -> None:
        storage(self.storage)
        if (
            self.codes_from not in CODES_FROM
            or self.rounding not in ROUNDINGS
            or self.block < 1
            or not 2 <= self.bits <= 16
        ):
            raise UsageError(
                "no such scheme",
                expected=f"codes_from {' or '.join(CODES_FROM)}, rounding"
                f" {' or '.join(ROUNDINGS)}, a block of at least 1, 2 to 16 bits",
                found=str(self),
            )

    @property
    def largest_code(self) -> int:
        """The largest code."""
        return (1 << (self.bits - 1)) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Worked:
    """Blocks with every step of their quantization; arrays `[rows, blocks, ...]`.

    Attributes:
        weights: float32 `[rows, blocks, block]`.
        exact: The scale as computed, float32 `[rows, blocks]`.
        stored: The scale as read back.
        codes: int32 `[rows, blocks, block]`.
        decoded: `codes * stored`, float32.
    """

    weights: Floats
    exact: Floats
    stored: Floats
    codes: npt.NDArray[np.int32]
    decoded: Floats

    @property
    def errors(self) -> Doubles:
        """Decoded minus original, float64."""
        with np.errstate(all="ignore"):
            return np.asarray(self.decoded.astype(np.float64) - self.weights, np.float64)


@np.errstate(all="ignore")
def worked(weights: npt.ArrayLike, scheme: Scheme) -> Worked:
    """Quantize and decode `[K]` or `[N, K]` weights, keeping every step.

    Raises:
        UsageError: K is no whole number of blocks.
    """
    rows = np.atleast_2d(np.ascontiguousarray(weights, np.float32))
    if rows.ndim != 2 or rows.shape[1] % scheme.block or not rows.shape[1]:
        raise UsageError(
            "rows are no whole number of blocks",
            expected=f"a multiple of {scheme.block}",
            found=str(list(rows.shape)),
        )
    blocks = rows.reshape(rows.shape[0], -1, scheme.block)
    top = np.float32(scheme.largest_code)
    exact = np.abs(blocks).max(axis=2) / top
    stored = storage(scheme.storage).store(exact)
    divisor = exact if scheme.codes_from == "exact" else stored
    rounded = ROUNDINGS[scheme.rounding](blocks / divisor[:, :, None])
    codes = np.clip(np.where(np.isnan(rounded), np.float32(0), rounded), -top, top)
    return Worked(blocks, exact, stored, codes.astype(np.int32), codes * stored[:, :, None])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scheme does to some weights.

    Errors are over blocks of finite weights whose stored scale is finite.

    Attributes:
        scheme: The scheme.
        weights, blocks: How many were quantized.
        not_finite: Blocks with a NaN or infinite weight; no scale can be taken of them.
        lost: Blocks that held something and decode to zero.
        overflowed: Blocks whose scale could not be stored.
        max_error: Largest absolute error; None, like the next two, where there is no such block.
        rms_error: Root of the mean squared error.
        max_steps: Largest error in steps of the block's exact scale.
        max_times_f16, rms_times_f16: The errors as multiples of those with f16 scales, codes and
            rounding alike; None where nothing can be compared.
    """

    scheme: Scheme
    weights: int
    blocks: int
    not_finite: int
    lost: int
    overflowed: int
    max_error: float | None
    rms_error: float | None
    max_steps: float | None
    max_times_f16: float | None = None
    rms_times_f16: float | None = None


class Trial:
    """Runs a scheme over a stream of rows; the outcome does not depend on how they are cut."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self._weights = self._blocks = self._measured = 0
        self._not_finite = self._lost = self._overflowed = 0
        self._max_error = self._max_steps = self._squares = 0.0

    @np.errstate(all="ignore")
    def add(self, rows: npt.ArrayLike) -> None:
        """Quantize more rows, `[K]` or `[N, K]`."""
        done = worked(rows, self.scheme)
        finite = np.isfinite(done.weights).all(axis=2)
        fits = np.isfinite(done.stored)
        measured = finite & fits
        held = done.weights.any(axis=2)
        self._weights += done.weights.size
        self._blocks += finite.size
        self._not_finite += int((~finite).sum())
        self._overflowed += int((finite & ~fits).sum())
        self._lost += int((measured & held & ~done.decoded.any(axis=2)).sum())
        self._measured += int(measured.sum()) * self.scheme.block
        errors = np.where(measured[:, :, None], np.abs(done.errors), 0.0)
        worst = errors.max(axis=2)
        self._max_error = max(self._max_error, float(worst.max()))
        steps = np.where(done.exact > 0, worst / done.exact.astype(np.float64), 0.0)
        self._max_steps = max(self._max_steps, float(np.where(measured, steps, 0.0).max()))
        # One sum a row, added in the order of rows: the same for any division into chunks.
        for square in np.square(errors).reshape(errors.shape[0], -1).sum(axis=1):
            self._squares += float(square)

    def outcome(self) -> Outcome:
        """Return what was found so far."""
        known = self._measured > 0
        return Outcome(
            scheme=self.scheme,
            weights=self._weights,
            blocks=self._blocks,
            not_finite=self._not_finite,
            lost=self._lost,
            overflowed=self._overflowed,
            max_error=self._max_error if known else None,
            rms_error=(self._squares / self._measured) ** 0.5 if known else None,
            max_steps=self._max_steps if known else None,
        )


def compare(
    weights: npt.NDArray[np.floating] | Iterable[npt.ArrayLike],
    storages: Sequence[str] = DEFAULT,
    *,
    like: Scheme | None = None,
) -> list[Outcome]:
    """Return the outcome of each way to store scales, and its error as a multiple of f16's.

    Args:
        weights: A block or row `[K]`, a tensor `[N, K]`, or an iterable of those (a model): each
            is read once and let go.
        storages: Names of ways to store.
        like: The other choices (codes, rounding, block, bits); its storage does not matter.
    """
    base = like or Scheme()
    trials = {
        name: Trial(replace(base, storage=name)) for name in dict.fromkeys([*storages, "f16"])
    }
    for part in [weights] if isinstance(weights, np.ndarray) else weights:
        for trial in trials.values():
            trial.add(part)
    reference = trials["f16"].outcome()
    return [_against(trials[name].outcome(), reference) for name in dict.fromkeys(storages)]


def _against(outcome: Outcome, reference: Outcome) -> Outcome:
    """Return an outcome with its multiples of the f16 one filled in."""

    def times(error: float | None, of: float | None) -> float | None:
        return error / of if error is not None and of else None

    return replace(
        outcome,
        max_times_f16=times(outcome.max_error, reference.max_error),
        rms_times_f16=times(outcome.rms_error, reference.rms_error),
    )

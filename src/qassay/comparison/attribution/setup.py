"""A Linear as a device may hold it: the true weights, or those weights with something wrong.

A fault is an edit of one component. Codes are never copied: a fault keeps an index of rows and
columns, a table of values, or another small component, so that thousands of combinations cost
nothing until one of them has to predict an output::

    code[n, k]  = values[codes[rows[n], columns[k]]]
    W[n, k]     = (code[n, k] - zeros[n, groups[k]]) * scales[n, groups[k]]  [ + minimums ]
    y[m]        = sum_k inputs(x)[m, x_columns[k]] * W[n, k]  + bias[n], as often as `bias_mode`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.encodings.layers.canonical import Canonical

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

_MOST_KEPT = 1 << 26
"""Weights of up to so many numbers are kept, not made again."""


def quick_bf16(values: npt.NDArray[np.float32]) -> Floats:
    """Return float32 rounded to bf16 as `sophgo.bfloat16.bf16` does, with less copying."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded &= 0xFFFF0000
    done: Floats = rounded.view(np.float32)
    lost = np.isnan(values)
    if lost.any():
        done[lost] = np.nan
    return done


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """One Linear, true or edited.

    Attributes:
        codes: As stored, `[N, K]`: unsigned integers, or float32 where nothing is quantized.
        scales: float32 `[N, G]`.
        zeros: float32 `[N, G]`, in units of codes.
        groups: Which of the G each of the K columns takes.
        bias: float32 `[N]`, or None.
        bits: Of a code; 0 for float weights.
        rows: Which stored row each channel takes, None: its own.
        columns: Which stored column each column takes, None: its own.
        values: What each stored code stands for, float32; None: itself.
        x_columns: Which input feature each column is multiplied with, None: its own.
        x_mode: What is done to the input first (`inputs.MODES`); "" for nothing.
        bias_mode: `once`, `none`, `twice` (added, rounded, added again) or `doubled`.
        minimums: float32 `[N, G]`, added to each weight; None where the encoding has none.
        exact_scales: Whether scales are used as they are, not rounded to the device's type.
        source: Name of the layer whose codes these are; "" for its own.
        edited: Which components differ from the true ones.
    """

    codes: npt.NDArray[Any]
    scales: Floats
    zeros: Floats
    groups: Index
    bias: Floats | None
    bits: int
    rows: Index | None = None
    columns: Index | None = None
    values: Floats | None = None
    x_columns: Index | None = None
    x_mode: str = ""
    bias_mode: str = "once"
    minimums: Floats | None = None
    exact_scales: bool = False
    source: str = ""
    edited: frozenset[str] = field(default_factory=frozenset)
    _kept: list[Floats] = field(default_factory=list, init=False, repr=False)

    @property
    def n(self) -> int:
        """Output channels."""
        return int(self.codes.shape[0])

    @property
    def k(self) -> int:
        """Input features."""
        return int(self.codes.shape[1])

    @property
    def g(self) -> int:
        """Groups a row."""
        return int(self.scales.shape[1])

    @property
    def quantized(self) -> bool:
        """Whether there are codes at all."""
        return self.bits > 0

    def take_rows(self, order: Index, targets: frozenset[str]) -> Setup:
        """Return the setup with each channel n taking some components from channel order[n]."""
        new: dict[str, Any] = {}
        if "q" in targets:
            new["rows"] = order if self.rows is None else self.rows[order]
        if "s" in targets:
            new["scales"] = self.scales[order]
        if "z" in targets:
            new["zeros"] = self.zeros[order]
        if "m" in targets and self.minimums is not None:
            new["minimums"] = self.minimums[order]
        if "b" in targets and self.bias is not None:
            new["bias"] = self.bias[order]
        return replace(self, **new, edited=self.edited | targets)

    def take_columns(self, order: Index) -> Setup:
        """Return the setup with the code of each column k taken from column order[k]."""
        columns = order if self.columns is None else self.columns[order]
        return replace(self, columns=columns, edited=self.edited | {"q"})

    def map_values(self, table: Floats) -> Setup:
        """Return the setup with each code c (its value, if mapped already) read as table[c]."""
        if self.values is not None:
            inner = np.clip(self.values, 0, len(table) - 1).astype(np.intp)
            table = table[inner]
        return replace(self, values=table, edited=self.edited | {"q"})

    def with_(self, target: str, **new: Any) -> Setup:
        """Return the setup with other fields, `target` marked as edited."""
        return replace(self, **new, edited=self.edited | set(target))

    @property
    def offset(self) -> str:
        """What is there beside the scales: `m` for minimums, else `z` for zero points."""
        return "z" if self.minimums is None else "m"

    def of_groups(self, target: str, change: Callable[[Floats], Floats], **new: Any) -> Setup:
        """Return the setup with scales (s), zero points (z), minimums (m) changed alike."""
        for letter, name in (("s", "scales"), ("z", "zeros"), ("m", "minimums")):
            old = getattr(self, name)
            if letter in target and old is not None:
                new[name] = change(old)
        return self.with_(target, **new)

    def read(self, channels: Index | slice = slice(None)) -> Floats:
        """Return what the codes of some channels stand for, float32 `[n, K]`; always a copy."""
        codes = self.codes[channels] if self.rows is None else self.codes[self.rows[channels]]
        if self.columns is not None:
            codes = codes[:, self.columns]
        if self.values is not None:
            return np.ascontiguousarray(np.take(self.values, codes), np.float32)
        return codes.astype(np.float32, order="C")

    def weight(self, channels: Index | slice = slice(None), *, stored: bool = False) -> Floats:
        """Return W of some channels, float32 `[n, K]`, before it is rounded to a weight.

        Scales are as the device has them: bf16 unless `exact_scales` or `stored`. Products of a
        code and a scale of 8 significant bits are exact in float32.
        """
        whole = isinstance(channels, slice) and channels == slice(None) and not stored
        if whole and self._kept:
            return self._kept[0]
        centred = self.read(channels)
        if self.quantized:
            scales = self.scales[channels]
            scales = scales if self.exact_scales or stored else quick_bf16(scales)
            size = self._regular()
            wide = centred.reshape(len(centred), -1, size) if size else centred
            wide -= self._spread(self.zeros[channels], size)
            wide *= self._spread(scales, size)
            if self.minimums is not None:
                wide += self._spread(self.minimums[channels], size)
        return centred

    def keep(self) -> None:
        """Keep the whole weight once it is made: for the true setup, which is asked for often."""
        if not self._kept and self.codes.size <= _MOST_KEPT:
            weight = self.weight()
            weight.flags.writeable = False
            self._kept.append(weight)

    def _regular(self) -> int:
        """Return the size of groups where all are of one size and in order, else 0."""
        size = self.k // self.g if self.g and self.k % self.g == 0 else 0
        if not size or not np.array_equal(self.groups, np.arange(self.k) // size):
            return 0
        return size

    def _spread(self, values: Floats, size: int) -> Floats:
        """Return one value a weight for one a group, or what broadcasts to that."""
        return values[:, :, None] if size else np.take(values, self.groups, axis=1)


def setup_of(
    canonical: Canonical, bias: npt.NDArray[Any] | None, bits: int, *, exact: bool = False
) -> Setup:
    """Return the true setup of a weight in canonical form.

    Args:
        canonical: Codes, scales, zero points, minimums.
        bias: N values, or None.
        bits: Of a code.
        exact: Whether scales are what they are, as in ggml, not to be rounded to bf16 first;
            those of an encoding with minimums are.

    Raises:
        UsageError: The bias is not one of N values.
    """
    n, _ = canonical.shape
    scales, zeros, minimums = canonical.scales, canonical.zeros, canonical.minimums
    if canonical.row_groups is not None:
        scales = scales[canonical.row_groups]
        zeros = None if zeros is None else zeros[canonical.row_groups]
        minimums = None if minimums is None else minimums[canonical.row_groups]
    codes = canonical.codes
    z = np.zeros(scales.shape, np.float32) if zeros is None else zeros.astype(np.float32)
    if codes.dtype.kind == "i" and canonical.table is None:
        # Signed codes are stored codes less half of their number, and so is their zero point.
        half = 1 << (bits - 1)
        codes = (codes.astype(np.int16) + half).clip(0, 2 * half - 1).astype(np.uint8)
        z = z + np.float32(half)
    return Setup(
        codes=codes,
        scales=np.ascontiguousarray(scales, np.float32),
        zeros=z,
        groups=canonical.groups.astype(np.intp),
        bias=_bias(bias, n),
        bits=bits,
        values=canonical.table,
        minimums=None if minimums is None else np.ascontiguousarray(minimums, np.float32),
        exact_scales=exact or minimums is not None,
    )


def setup_of_floats(weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None) -> Setup:
    """Return the setup of a float weight `[N, K]`.

    Raises:
        UsageError: It is no matrix, or the bias is not one of N values.
    """
    if weight.ndim != 2:
        raise UsageError("a weight is a matrix", expected="[N, K]", found=str(list(weight.shape)))
    n, k = weight.shape
    return Setup(
        codes=np.ascontiguousarray(weight, np.float32),
        scales=np.ones((n, 1), np.float32),
        zeros=np.zeros((n, 1), np.float32),
        groups=np.zeros(k, np.intp),
        bias=_bias(bias, n),
        bits=0,
    )


def _bias(bias: npt.NDArray[Any] | None, n: int) -> Floats | None:
    if bias is None:
        return None
    flat = np.asarray(bias, np.float32).reshape(-1)
    if flat.shape != (n,):
        raise UsageError(
            "the bias is not that of the weight", expected=str(n), found=str(flat.size)
        )
    return flat

"""Sums of codes over groups, for a first look at thousands of hypotheses.

What most faults leave alone is added up once and kept::

    y[m, n] = sum_g s[n, g] * (A[n, m, g] - z[n, g] * X[m, g]) + min[n, g] * X[m, g] + b[n]
    A[n, m, g] = sum of x[m, k] * code[n, k] over the columns k of group g
    X[m, g]    = sum of x[m, k] over them

The weight is not rounded to bf16 first: an output is off by less than a unit in the last place,
which is a small part of what a first look allows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from qassay.comparison.attribution.inputs import Inputs
from qassay.comparison.attribution.setup import Floats, Index, Setup, quick_bf16
from qassay.runtimes.sophgo.arithmetic import Model

_KEPT = 8
"""Sums that are kept, those of the true codes among them."""

Key = tuple[Any, ...]
Added = tuple[Floats, Floats]


class Sums:
    """Predictions of some outputs, of many setups at once.

    Attributes:
        inputs: All rows that were run.
        rows: Those that are predicted.
        channels: The outputs that are predicted.
    """

    def __init__(self, true: Setup, inputs: Inputs, rows: Index, channels: Index) -> None:
        self.inputs, self.rows, self.channels = inputs, rows, channels
        self._true = self._key(true)
        # Arrays are told apart by identity: an entry holds those of its key, so none is reused.
        self._made: OrderedDict[Key, tuple[Setup, Added]] = OrderedDict()

    @np.errstate(all="ignore")
    def predict(self, setups: Sequence[Setup], model: Model) -> tuple[Floats, Floats]:
        """Return outputs `[J, m, n]` of each setup, and the bias that enters each, `[J, 1, n]`."""
        products = np.empty((len(setups), len(self.rows), len(self.channels)), np.float32)
        groups: dict[Key, list[int]] = {}
        for place, setup in enumerate(setups):
            groups.setdefault(self._key(setup), []).append(place)
        for key, places in groups.items():
            products[places] = self._products(key, [setups[place] for place in places])
        bias, again = self._biases(setups)
        done = quick_bf16(products) + bias if model.rounds_product else products + bias
        done = quick_bf16(done)
        return quick_bf16(done + again) if again.any() else done, bias

    def _biases(self, setups: Sequence[Setup]) -> tuple[Floats, Floats]:
        """Return the bias of each setup and what is added after it, `[J, 1, n]`."""
        none = np.zeros(len(self.channels), np.float32)
        listed = [none if one.bias is None or one.bias_mode == "none" else one.bias[self.channels]
                  for one in setups]  # fmt: skip
        bias = quick_bf16(np.array(listed))[:, None]
        modes = np.array([one.bias_mode for one in setups])[:, None, None]
        again = np.where(modes == "twice", bias, np.float32(0))
        return np.where(modes == "doubled", quick_bf16(bias * np.float32(2)), bias), again

    def _products(self, key: Key, setups: Sequence[Setup]) -> Floats:
        """Return x W^T `[J, m, n]` of setups that share their codes and inputs."""
        added, totals = self._sums(key, setups[0])
        scales = self._scales(setups)
        done = added @ scales
        if setups[0].quantized:
            zeros = np.array([setup.zeros[self.channels] for setup in setups])
            if zeros.any():
                done -= totals @ (zeros.transpose(1, 2, 0) * scales)
        least = [one.minimums[self.channels] for one in setups if one.minimums is not None]
        if least:
            done += totals @ np.array(least).transpose(1, 2, 0)
        return np.asarray(done.transpose(2, 1, 0), np.float32)

    def _scales(self, setups: Sequence[Setup]) -> Floats:
        """Return the scales of each setup as the device has them, `[n, g, J]`."""
        if not setups[0].quantized:
            return np.ones((len(self.channels), setups[0].g, len(setups)), np.float32)
        scales = np.array([setup.scales[self.channels] for setup in setups])
        exact = np.array([setup.exact_scales for setup in setups])
        used = quick_bf16(scales)
        used[exact] = scales[exact]
        return np.asarray(used.transpose(1, 2, 0), np.float32)

    def _key(self, setup: Setup) -> Key:
        """Return what tells apart codes, groups and inputs: mostly the arrays that hold them."""
        rows = self.channels if setup.rows is None else setup.rows[self.channels]
        arrays = (setup.codes, setup.columns, setup.values, setup.x_columns, setup.groups)
        affine = setup.minimums is not None
        return (*map(id, arrays), rows.tobytes(), setup.x_mode, setup.g, affine)

    def _sums(self, key: Key, setup: Setup) -> Added:
        """Return A `[n, m, g]` and X `[1, m, g]`."""
        known = self._made.get(key)
        if known is not None:
            self._made.move_to_end(key)
            return known[1]
        done = self._add(setup)
        self._made[key] = setup, done
        if len(self._made) > _KEPT:
            oldest = next(one for one in self._made if one != self._true)
            del self._made[oldest]
        return done

    def _add(self, setup: Setup) -> Added:
        x = self.inputs.values(setup.x_mode)[self.rows]
        if setup.x_columns is not None:
            x = x[:, setup.x_columns]
        codes = setup.read(self.channels)
        place = setup.groups
        if np.any(place[1:] < place[:-1]):
            order = np.argsort(place, kind="stable")
            x, codes, place = x[:, order], codes[:, order], place[order]
        sizes = np.bincount(place, minlength=setup.g)
        m, n = len(x), len(codes)
        added = np.zeros((n, m, setup.g), np.float32)
        totals = np.zeros((1, m, setup.g), np.float32)
        used = int(np.count_nonzero(sizes))
        size = int(sizes[0])
        if used * size == len(place) and (sizes[:used] == size).all():
            parts = x.reshape(m, used, size)
            product = parts.transpose(1, 0, 2) @ codes.reshape(n, used, size).transpose(1, 2, 0)
            added[:, :, :used] = product.transpose(2, 1, 0)
            totals[0, :, :used] = parts.sum(axis=2)
            return added, totals
        for group, stop in enumerate(np.cumsum(sizes)):
            columns = slice(int(stop - sizes[group]), int(stop))
            added[:, :, group] = codes[:, columns] @ x[:, columns].T
            totals[0, :, group] = x[:, columns].sum(axis=1)
        return added, totals

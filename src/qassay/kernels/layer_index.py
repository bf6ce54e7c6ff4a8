"""Which columns of a layer each group has: runs, or what an index (`g_idx`) says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.core.finding import MAX_LOCATIONS, Location
from qassay.core.stats import Offence, Tally, TallyKey
from qassay.encodings.layers.base import Layer, Role

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class GroupIndex:
    """The columns of each group.

    Attributes:
        columns: Columns in order of their groups, `[K]` (fewer where some have no group).
        starts: Where each group begins in `columns`, and the end, `[G + 1]`.
        natural: Whether groups are runs of columns, in order.
        outside: Tallies of entries that name no group.
    """

    columns: Index
    starts: Index
    natural: bool
    outside: dict[TallyKey, Tally]

    @property
    def first(self) -> Index | None:
        """The first column of each group, -1 of a group without any; None for runs."""
        if self.natural:
            return None
        filled = np.diff(self.starts) > 0
        return np.where(filled, self.first_of(np.arange(filled.size)), -1)

    def first_of(self, groups: Index) -> Index:
        """Return the first column of groups that have one."""
        padded = np.append(self.columns, 0)
        return np.asarray(padded[self.starts[groups]])


def index_of(layer: Layer) -> GroupIndex:
    """Return the columns of each group of a layer; reads its index, if it has one."""
    count = layer.groups
    starts = np.minimum(np.arange(count + 1) * layer.group, layer.columns)
    name = next((p for p in layer.parts if layer.encoding.part(p).role is Role.INDEX), None)
    if name is None:
        return GroupIndex(np.arange(layer.columns), starts, True, {})
    index = layer.array(name)
    unset = layer.encoding.unset_index
    in_order = np.arange(layer.columns) // layer.group
    if np.array_equal(index, in_order) or (unset is not None and bool((index == unset).all())):
        return GroupIndex(np.arange(layer.columns), starts, True, {})
    bad = (index < 0) | (index >= count)
    outside = _outside(layer, name, np.flatnonzero(bad))
    if unset is not None and bool((index == unset).any()):  # as its readers do, too
        return GroupIndex(np.arange(layer.columns), starts, True, outside)
    good = np.flatnonzero(~bad)
    groups = index[good].astype(np.int64)
    columns = good[np.argsort(groups, kind="stable")]
    starts = np.searchsorted(np.sort(groups), np.arange(count + 1))
    return GroupIndex(columns, np.asarray(starts, np.int64), False, outside)


def _outside(layer: Layer, name: str, at: Index) -> dict[TallyKey, Tally]:
    """Return the tally of the entries of an index that name no group."""
    if at.size == 0:
        return {}
    stored, index = layer.parts[name], layer.array(name)
    tally = Tally(count=int(at.size))
    tally.parts["negative"] = int((index[at] < 0).sum())
    for column in at[:MAX_LOCATIONS].tolist():
        offset = stored.offset + column * index.itemsize
        place = Location(column=column, field=name, byte_offset=offset, value=int(index[column]))
        tally.places.append((column, place))
    return {(Offence.GROUP_OUT_OF_RANGE, name, None): tally}

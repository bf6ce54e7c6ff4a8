"""Weights that one side keeps in other pieces than the other: experts, and rows that alternate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qassay.comparison.forms import Form
from qassay.comparison.weights import Weight, Whole


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Experts that are kept one by one, `[experts, N, K]` in their order.

    Attributes:
        experts: The weights.
        spread: Whether they assign columns to groups each in its own way (act-order), so that
            scales are given for each column.
    """

    experts: tuple[Weight, ...]
    spread: bool = False

    @classmethod
    def of(cls, experts: Sequence[Weight]) -> Stack | None:
        """Return the stack, None where they are not alike."""
        kinds = {(each.shape, each.label, each.bits) for each in experts}
        apart = {None if each.whole is None else each.whole.divides for each in experts}
        if len(kinds) != 1 or len(apart) != 1 or len(experts[0].shape) != 2:
            return None
        groups = [each.form(0, 1, local=False).groups for each in experts]
        alike = all(np.array_equal(each, groups[0]) for each in groups)
        return cls(tuple(experts), not alike)

    @property
    def name(self) -> str:
        """The first expert's."""
        return self.experts[0].name

    @property
    def path(self) -> str:
        """The first expert's file."""
        return self.experts[0].path

    @property
    def label(self) -> str:
        """Encoding and bits."""
        return self.experts[0].label

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.experts[0].bits

    @property
    def shape(self) -> tuple[int, ...]:
        """`(experts, N, K)`."""
        return (len(self.experts), *self.experts[0].shape)

    @property
    def nbytes(self) -> int:
        """Stored bytes of all experts."""
        return sum(each.nbytes for each in self.experts)

    @property
    def whole(self) -> Whole | None:
        """The scales of the experts."""
        wholes = [each.whole for each in self.experts if each.whole is not None]
        if len(wholes) != len(self.experts):
            return None
        return Whole(np.concatenate([each.values for each in wholes]), wholes[0].divides)

    def form(self, start: int, stop: int, *, local: bool) -> Form:
        """Return rows; see `Weight`."""
        rows = self.shape[1]
        pieces = [
            self.experts[at].form(
                max(0, start - at * rows), min(rows, stop - at * rows), local=local
            )
            for at in range(start // rows, -(-stop // rows))
        ]
        return joined([piece.spread() for piece in pieces] if self.spread else pieces)


def joined(pieces: Sequence[Form]) -> Form:
    """Return rows that follow each other as one `Form`."""
    first = pieces[0]
    if len(pieces) == 1:
        return first

    def together(name: str) -> Any:
        parts = [piece.part(name) for piece in pieces]
        return np.concatenate([part for part in parts if part is not None]) if parts else None

    return replace(
        pieces[0],
        codes=together("codes"),
        scales=together("scales"),
        zeros=None if first.zeros is None else together("zeros"),
        minimums=None if first.minimums is None else together("minimums"),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Strided:
    """Every second row of a weight that holds two: gpt-oss keeps gate and up interleaved."""

    inner: Weight
    first: int
    step: int = 2

    @property
    def name(self) -> str:
        """The tensor that holds both."""
        return self.inner.name

    @property
    def path(self) -> str:
        """Its file."""
        return self.inner.path

    @property
    def label(self) -> str:
        """Encoding and bits."""
        return self.inner.label

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.inner.bits

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape, with so many rows fewer."""
        *experts, rows, columns = self.inner.shape
        return (*experts, rows // self.step, columns)

    @property
    def nbytes(self) -> int:
        """The share of the stored bytes."""
        return self.inner.nbytes // self.step

    @property
    def whole(self) -> Whole | None:
        """The scale of the whole tensor."""
        return self.inner.whole

    def form(self, start: int, stop: int, *, local: bool) -> Form:
        """Return rows; see `Weight`."""
        form = self.inner.form(start * self.step, stop * self.step, local=local)
        part = slice(self.first, None, self.step)
        return replace(
            form,
            codes=form.codes[part],
            scales=form.scales[part],
            zeros=None if form.zeros is None else form.zeros[part],
            minimums=None if form.minimums is None else form.minimums[part],
        )

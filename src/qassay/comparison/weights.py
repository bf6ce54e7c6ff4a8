"""One side's weights: where each comes from, and how to read some of its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qassay.comparison.canonical_blocks import canonical_rows
from qassay.comparison.forms import Form, form_of
from qassay.core.container import StoredTensor
from qassay.encodings.base import BlockEncoding, Encoding
from qassay.encodings.layers import Layer, Role
from qassay.encodings.layers.canonical import Floats
from qassay.encodings.registry import for_stored_type

SLAB = 1 << 21
"""Weights that are unpacked at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """The scale of a whole tensor, float32 `[experts]` or `[1]`.

    Attributes:
        values: As stored.
        divides: Whether weights are divided by it (compressed-tensors), not multiplied.
    """

    values: Floats
    divides: bool

    def factors(self) -> npt.NDArray[np.float64]:
        """Return what weights are multiplied by."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = self.values.astype(np.float64)
            return 1 / values if self.divides else values


class Weight(Protocol):
    """A quantized matrix of either packing.

    Attributes:
        name: The tensor that findings name.
        path: Its file.
        label: Encoding and bits.
        bits: Of a code.
        shape: `(N, K)` or `(experts, N, K)`.
        nbytes: Stored bytes.
        whole: The scale of the whole tensor where it is kept apart.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def bits(self) -> int: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def nbytes(self) -> int: ...  # noqa: D102
    @property
    def whole(self) -> Whole | None: ...  # noqa: D102

    def form(self, start: int, stop: int, *, local: bool) -> Form:
        """Return rows of all experts in turn; `local` leaves the scale of the tensor out."""


def rows_of(weight: Weight) -> int:
    """Return the rows of all experts together."""
    return math.prod(weight.shape[:-1])


def slabs(weight: Weight, times: int = 1) -> list[tuple[int, int]]:
    """Return where to cut a weight so that no piece has many more than `times * SLAB` weights."""
    rows = rows_of(weight)
    step = max(1, times * SLAB // max(1, weight.shape[-1]))
    if step > 128:
        step -= step % 128  # block scales share 128 rows, words 8 or 32
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeight:
    """A tensor of ggml blocks.

    Attributes:
        stored: The tensor.
        encoding: Its encoding.
        whole: The scale of the whole tensor.
        companion: The tensor that holds that scale, `<name>.scale`; "" where none does.
    """

    stored: StoredTensor
    encoding: type[BlockEncoding]
    whole: Whole | None = None
    companion: str = ""

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.stored.name

    @property
    def path(self) -> str:
        """Its file."""
        return self.stored.path

    @property
    def label(self) -> str:
        """Its encoding."""
        return self.encoding.id

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.encoding.code_bits().width

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape, at least two axes."""
        shape = self.stored.shape
        return shape if len(shape) > 1 else (1, *shape)

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return self.stored.nbytes or 0

    def form(self, start: int, stop: int, *, local: bool) -> Form:
        """Return rows; see `Weight`."""
        columns = self.shape[-1]
        row_bytes = columns // self.encoding.block * self.encoding.block_bytes
        raw = self.stored.source.read(
            self.stored.offset + start * row_bytes, (stop - start) * row_bytes
        )
        form = form_of(canonical_rows(self.encoding, raw, columns), self.bits)
        return form if local or self.whole is None else fused(form, self, start)


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeight:
    """A weight that is kept in several tensors."""

    layer: Layer
    whole: Whole | None = None

    @classmethod
    def of(cls, layer: Layer) -> LayerWeight:
        """Return the weight; the scale of the whole tensor is told apart where it is certain."""
        return cls(layer, _whole_of(layer))

    @property
    def name(self) -> str:
        """The tensor that holds the codes."""
        return self.layer.codes.name

    @property
    def path(self) -> str:
        """Its file."""
        return self.layer.codes.path

    @property
    def label(self) -> str:
        """Encoding and bits."""
        return self.layer.label

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.layer.bits

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return self.layer.shape

    @property
    def nbytes(self) -> int:
        """Stored bytes, all parts together."""
        return self.layer.nbytes

    def form(self, start: int, stop: int, *, local: bool) -> Form:
        """Return rows; see `Weight`."""
        form = form_of(self.layer.encoding.unpack(self.layer, start, stop), self.bits)
        if not local or self.whole is None:
            return form
        return replace(form, scales=_local_scales(self.layer, start, stop))


def _named(layer: Layer, role: Role) -> str | None:
    names = [p.name for p in layer.encoding.parts if p.role is role and p.name in layer.parts]
    return names[0] if len(names) == 1 else None


def _local_scales(layer: Layer, start: int, stop: int) -> Floats:
    name = _named(layer, Role.SCALE)
    assert name is not None  # noqa: S101 - `_whole_of` looked
    stored = layer.parts[name]
    known = for_stored_type(stored.type)
    assert known is not None  # noqa: S101 - `fit` took only dtypes that are known
    raw = stored.raw().reshape(layer.total_rows, -1)[start:stop]
    return known.dequantize(raw.reshape(-1)).reshape(stop - start, -1)


def _whole_of(layer: Layer) -> Whole | None:
    """Return the scale of the whole tensor, if what `unpack` gives is its product with the rest."""
    local, whole = _named(layer, Role.SCALE), _named(layer, Role.GLOBAL)
    if local is None or whole is None or layer.parts[local].size % layer.total_rows:
        return None
    values = layer.floats(whole).reshape(-1)
    if values.size not in (1, layer.experts or 1) or not values.size:
        return None
    rows = min(layer.total_rows, 16)
    known = form_of(layer.encoding.unpack(layer, 0, rows), layer.bits).scales
    own = _local_scales(layer, 0, rows)
    if own.shape != known.shape:
        return None
    each = np.repeat(values, layer.rows)[:rows, None] if values.size > 1 else values[None, :]
    with np.errstate(all="ignore"):
        for divides, product in ((False, own * each), (True, own / each)):
            # Some readers multiply by the reciprocal: one more rounding, the same number.
            near = np.isclose(product, known, rtol=2.0**-21, atol=0, equal_nan=True)
            if near.all():
                return Whole(values, divides)
    return None


def fused(form: Form, weight: Weight, start: int) -> Form:
    """Return rows with the scale of the whole tensor in their scales."""
    assert weight.whole is not None  # noqa: S101 - the caller looked
    factors = row_factors(weight, start, start + form.codes.shape[0])
    with np.errstate(over="ignore", invalid="ignore"):
        return replace(form, scales=(form.scales * factors[:, None]).astype(np.float32))


def row_factors(weight: Weight, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Return what each row is multiplied by, besides its own scales; float32 `[rows]`."""
    if weight.whole is None:
        return np.ones(stop - start, np.float32)
    factors = weight.whole.factors().astype(np.float32)
    if factors.size == 1:
        return np.full(stop - start, factors[0], np.float32)
    return factors[np.arange(start, stop) // weight.shape[-2]]


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """A tensor of one number a weight.

    Attributes:
        stored: The tensor.
        encoding: Its encoding.
        first: Of the innermost axis, the first element taken.
        step: And every how many.
        inverse: Whether the other side holds the reciprocals.
    """

    stored: StoredTensor
    encoding: type[Encoding]
    first: int = 0
    step: int = 1
    inverse: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        shape = self.stored.shape
        return (*shape[:-1], shape[-1] // self.step) if self.step > 1 else shape

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return values `start` to `stop` in row-major order, float64 or integers."""
        size = self.encoding.block_bytes
        from_, to = start * self.step, stop * self.step
        raw = self.stored.source.read(self.stored.offset + from_ * size, (to - from_) * size)
        dtype = getattr(self.encoding, "dtype", "")
        if self.encoding.kind == "integer" or dtype == "<f8":
            values: npt.NDArray[Any] = raw.view(dtype)
        else:
            values = self.encoding.dequantize(raw)
        return values[self.first :: self.step]


@dataclass(frozen=True, slots=True, eq=False)
class PlainStack(Plain):
    """Float experts that are kept one by one, `[experts, N, K]` in their order.

    Attributes:
        experts: The tensors, all of one encoding and shape; `stored` is the first's.
    """

    experts: tuple[Plain, ...] = ()

    @classmethod
    def of(cls, experts: Sequence[Plain]) -> PlainStack | None:
        """Return the stack, None where they are not alike."""
        first = experts[0]
        if any(one.shape != first.shape or one.encoding is not first.encoding for one in experts):
            return None
        return cls(first.stored, first.encoding, experts=tuple(experts))

    @property
    def shape(self) -> tuple[int, ...]:
        """`(experts, N, K)`."""
        return (len(self.experts), *self.experts[0].shape)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return values `start` to `stop` in row-major order; see `Plain`."""
        each = self.experts[0].size
        pieces = [
            self.experts[at].read(max(0, start - at * each), min(each, stop - at * each))
            for at in range(start // each, -(-stop // each))
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


@dataclass(frozen=True, slots=True)
class Unread:
    """A tensor that cannot be decoded, and why."""

    stored: StoredTensor
    reason: str


Entry = Weight | Plain | Unread


def is_quantized(entry: Entry) -> bool:
    """Tell whether an entry is a quantized matrix."""
    return not isinstance(entry, (Plain, Unread))


def place_of(entry: Entry) -> tuple[str, str]:
    """Return path and tensor name of any entry, as findings name them."""
    if isinstance(entry, (Plain, Unread)):
        return entry.stored.path, entry.stored.name
    return entry.path, entry.name


def label_of(entry: Entry) -> str:
    """Return how an entry is encoded."""
    if isinstance(entry, Unread):
        return entry.stored.type.name
    return entry.encoding.id if isinstance(entry, Plain) else entry.label

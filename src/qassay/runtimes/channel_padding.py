"""More output channels for a Linear, in the form in which its checkpoint keeps it.

A padded channel has to be nothing: its codes equal its zero point (not zero bytes), its scale is
1, its bias 0. Then it dequantizes to zeros and `Y = Y'[..., :N]`. Nothing that is stored of the
first N channels changes, and it is known before anything is read which tensors grow, and where::

    gptq             qweight [K*b/32, N]  columns    qzeros [G, N*b/32]  made anew   scales columns
    awq              qweight [K, N/8]     columns    qzeros [G, N/8]     columns     scales columns
    awq.gemv         qweight [N, K/8]     rows       qzeros [N, Z]       rows        scales rows
    compressed.pack  weight_packed        rows       zero points         made anew   scales rows
    compressed.int   weight [N, K]        rows       zero points         rows        scales rows
    float            weight [N, K]        rows

A scale of the whole tensor stays; of blocks of rows only those are added that the new rows need.
Indexes of groups (`g_idx`) are about input features, and stay. Bias `[N]` gets zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.container import StoredTensor
from qassay.core.source import Bytes
from qassay.core.text import safe
from qassay.encodings.layers.base import Layer, Module, Role
from qassay.encodings.layers.canonical import Canonical
from qassay.encodings.layers.words import pack, pack_awq, unpack

FLOAT_DTYPES = ("F16", "BF16", "F32", "F64")
"""Float weights that can be padded: all bytes zero is the number 0."""

_ONE = {"F16": 0x3C00, "BF16": 0x3F80, "F32": 0x3F800000}
_SLICE = 1 << 24
"""Bytes that are held at a time."""

Array = npt.NDArray[Any]


class CannotPadError(Exception):
    """A layer that cannot be padded soundly; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """How one stored tensor grows.

    Attributes:
        stored: The tensor.
        shape: Its new shape.
        tail: What is appended along `axis`; all of the new tensor where `axis` is None.
        axis: 0 or 1, or None.
    """

    stored: StoredTensor
    shape: tuple[int, ...]
    tail: Array
    axis: int | None

    @property
    def nbytes(self) -> int:
        """Bytes of the new tensor."""
        return self.tail.nbytes + (0 if self.axis is None else self.stored.nbytes or 0)

    def pieces(self) -> Iterator[Bytes]:
        """Yield the new tensor's bytes in order, few at a time."""
        if self.axis is None:
            yield _bytes(self.tail)
        elif self.axis == 0:
            yield from slices(self.stored)
            yield _bytes(self.tail)
        else:
            yield from self._widened()

    def _widened(self) -> Iterator[Bytes]:
        rows, width = self.stored.shape
        each = (self.stored.nbytes or 0) // rows
        step = max(1, _SLICE // max(each, 1))
        for start in range(0, rows, step):
            count = min(step, rows - start)
            raw = self.stored.source.read(self.stored.offset + start * each, count * each)
            old = raw.view(self.tail.dtype).reshape(count, width)
            yield _bytes(np.concatenate([old, self.tail[start : start + count]], axis=1))


def slices(stored: StoredTensor) -> Iterator[Bytes]:
    """Yield a tensor's bytes in order, few at a time."""
    for start in range(0, stored.nbytes or 0, _SLICE):
        yield stored.source.read(stored.offset + start, min(_SLICE, (stored.nbytes or 0) - start))


def _bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def grow_layer(layer: Layer, module: Module, target: int) -> list[Growth]:
    """Return how the tensors of a quantized layer grow to `target` output channels.

    Raises:
        CannotPadError: They cannot, and why.
    """
    maker = _FAMILIES.get(layer.encoding.id)
    if maker is None:
        raise CannotPadError(
            f"padding {layer.label} is not written: only integer codes with scales a group,"
            " a channel or a tensor are"
        )
    if layer.experts is not None:
        raise CannotPadError("its experts are fused into one tensor")
    if target <= layer.rows:
        return []
    _only_known(module, set(layer.parts) | {"bias"}, layer.rows)
    for part in layer.encoding.parts:
        stored = layer.parts.get(part.name)
        of_outputs = part.role is Role.ACTIVATION and part.name.startswith("output_")
        if stored is not None and of_outputs and stored.size > 1:
            raise CannotPadError(f"its {part.name} has a value a channel")
    return [*maker(layer, target), *_bias(module, layer.rows, target)]


def grow_float(module: Module, target: int) -> list[Growth]:
    """Return how a float weight `[N, K]` and its bias grow to `target` output channels.

    Raises:
        CannotPadError: They cannot, and why.
    """
    weight = module.tensors["weight"]
    if weight.type.label not in FLOAT_DTYPES:
        raise CannotPadError(f"padding {weight.type.name} weights is not written")
    rows, columns = weight.shape
    if target <= rows:
        return []
    _only_known(module, {"weight", "bias"}, rows)
    width = weight.type.block_bytes
    tail = np.zeros((target - rows, columns), f"<u{width}")
    return [Growth(weight, (target, columns), tail, 0), *_bias(module, rows, target)]


def _only_known(module: Module, known: set[str], rows: int) -> None:
    for part, stored in module.tensors.items():
        if part not in known and rows in stored.shape:
            raise CannotPadError(f"what {safe(part, 60)} beside it does is not known")


def _bias(module: Module, rows: int, target: int) -> Iterator[Growth]:
    stored = module.tensors.get("bias")
    if stored is None:
        return
    if stored.shape != (rows,) or stored.type.label not in FLOAT_DTYPES:
        raise CannotPadError(
            f"its bias is {stored.type.name} {list(stored.shape)}, not one float a channel"
        )
    tail = np.zeros(target - rows, f"<u{stored.type.block_bytes}")
    yield Growth(stored, (target,), tail, 0)


def _codes(layer: Layer, target: int) -> tuple[Canonical, int, int]:
    """Return the new channels in canonical form, and the rows of scales before and after.

    Rows that fall into a block of rows that there is already take its zero points; others get the
    middle of the codes, which is what symmetric checkpoints store.
    """
    last = layer.encoding.unpack(layer, layer.rows - 1, layer.rows)
    if int(last.groups.max(initial=0)) >= layer.groups:
        raise CannotPadError("an index puts columns into a group that there is not")
    height = _height(layer)
    count = -(-layer.rows // height)
    wanted = max(-(-target // height), count)
    signed = last.codes.dtype.kind == "i"
    middle = 0 if signed else 1 << (layer.bits - 1)
    zeros = np.full((target - layer.rows, layer.groups), middle, np.int16)
    shared = min(count * height, target) - layer.rows
    if shared:
        if not np.isfinite(last.scales[-1]).all():
            raise CannotPadError("the scale that the new channels would share is no finite number")
        zeros[:shared] = 0 if last.zeros is None else last.zeros[-1]
    codes = zeros[:, last.groups].astype(last.codes.dtype)
    scales = np.ones(zeros.shape, np.float32)
    return Canonical(codes, scales, last.groups, zeros), count, wanted


def _height(layer: Layer) -> int:
    """Return how many rows share a scale; more than there will ever be for one of the tensor."""
    if layer.group_rows == 1:
        return 1
    if layer.group_rows < layer.rows:
        return layer.group_rows
    block = layer.claim.block if layer.claim is not None else None
    return block[0] if block is not None and block[0] > 0 else 1 << 62


def _ones(stored: StoredTensor, shape: tuple[int, ...]) -> Array:
    return np.full(shape, _ONE[str(stored.type.label)], f"<u{stored.type.block_bytes}")


def _rows(stored: StoredTensor, tail: Array) -> Growth:
    shape = (stored.shape[0] + tail.shape[0], *stored.shape[1:])
    return Growth(stored, shape, tail.reshape(-1, *stored.shape[1:]), 0)


def _columns(stored: StoredTensor, tail: Array) -> Growth:
    return Growth(stored, (stored.shape[0], stored.shape[1] + tail.shape[1]), tail, 1)


def _anew(stored: StoredTensor, whole: Array) -> Growth:
    return Growth(stored, whole.shape, whole, None)


def _whole_words(target: int) -> None:
    if target % 8:
        raise CannotPadError(
            f"eight channels share a word, so that {target} channels are no whole words"
        )


def _gptq(layer: Layer, target: int) -> Iterator[Growth]:
    new, _, _ = _codes(layer, target)
    more, parts = target - layer.rows, layer.parts
    yield _columns(parts["qweight"], pack(new.codes, layer.bits, axis=0))
    stored = unpack(layer.array("qzeros"), layer.bits, layer.rows)
    mask = (1 << layer.bits) - 1
    value = (1 << (layer.bits - 1)) - layer.options["zero_offset"] & mask
    tail = np.full((stored.shape[0], more), value, np.uint8)
    yield _anew(parts["qzeros"], pack(np.concatenate([stored, tail], axis=1), layer.bits))
    yield _columns(parts["scales"], _ones(parts["scales"], (stored.shape[0], more)))


def _awq(layer: Layer, target: int) -> Iterator[Growth]:
    _whole_words(target)
    new, _, _ = _codes(layer, target)
    assert new.zeros is not None  # noqa: S101 - `_codes` gives them
    parts, more = layer.parts, target - layer.rows
    yield _columns(parts["qweight"], pack_awq(new.codes))
    yield _columns(parts["qzeros"], pack_awq(new.zeros))
    yield _columns(parts["scales"], _ones(parts["scales"], (layer.groups, more)))


def _gemv(layer: Layer, target: int) -> Iterator[Growth]:
    new, _, _ = _codes(layer, target)
    parts, more = layer.parts, target - layer.rows
    packed = layer.encoding.pack(replace(layer, rows=more), new)
    yield _rows(parts["qweight"], packed["qweight"])
    yield _rows(parts["qzeros"], packed["qzeros"])
    yield _rows(parts["scales"], _ones(parts["scales"], (more, parts["scales"].shape[1])))


def _compressed_pack(layer: Layer, target: int) -> Iterator[Growth]:
    new, count, wanted = _codes(layer, target)
    parts = layer.parts
    yield _rows(parts["weight_packed"], pack(new.codes, layer.bits))
    yield from _more_scales(parts["weight_scale"], wanted - count)
    shape = parts["weight_shape"]
    dtype = "<i8" if shape.type.label == "I64" else "<i4"
    yield _anew(shape, np.array([target, layer.columns], dtype))
    zeros = parts.get("weight_zero_point")
    if zeros is not None and zeros.type.label == "I8":
        yield from _more_zeros(zeros, wanted - count)
    elif zeros is not None and wanted > count:
        old = unpack(layer.array("weight_zero_point"), layer.bits, count, axis=0)
        tail = np.full((old.shape[0], wanted - count), 1 << (layer.bits - 1), np.uint8)
        yield _anew(zeros, pack(np.concatenate([old, tail], axis=1), layer.bits, axis=0))


def _compressed_int(layer: Layer, target: int) -> Iterator[Growth]:
    new, count, wanted = _codes(layer, target)
    yield _rows(layer.parts["weight"], new.codes.view(np.uint8))
    yield from _more_scales(layer.parts["weight_scale"], wanted - count)
    zeros = layer.parts.get("weight_zero_point")
    if zeros is not None:
        yield from _more_zeros(zeros, wanted - count)


def _more_scales(stored: StoredTensor, more: int) -> Iterator[Growth]:
    if more:
        yield _rows(stored, _ones(stored, (more, *stored.shape[1:])))


def _more_zeros(stored: StoredTensor, more: int) -> Iterator[Growth]:
    if more:  # signed: the middle is 0
        yield _rows(stored, np.zeros((more, *stored.shape[1:]), np.uint8))


_FAMILIES: dict[str, Callable[[Layer, int], Iterator[Growth]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "awq.gemv": _gemv,
    "compressed.pack": _compressed_pack,
    "compressed.int": _compressed_int,
}

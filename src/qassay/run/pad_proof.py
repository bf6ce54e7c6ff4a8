"""The proof that a padded checkpoint is the old one with channels of nothing behind the others.

Both are read from the disk. Of a padded layer the first N channels have to be the same in
canonical form (codes, zero points, scales bit for bit, groups), the others have to decode to
zeros, and outputs for zeros, random rows and one-hot inputs, cropped, have to be the same bit for
bit. All other tensors have to be the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from qassay.core.container import Container, StoredTensor
from qassay.encodings.base import PlainEncoding
from qassay.encodings.layers.assemble import Assembly, assemble
from qassay.encodings.layers.base import Layer
from qassay.encodings.layers.canonical import Canonical, Floats
from qassay.encodings.registry import for_stored_type
from qassay.runtimes.channel_padding import slices

if TYPE_CHECKING:
    from qassay.run.pad import PaddedLayer

Watch = Callable[[int], None]

CHUNK_WEIGHTS = 1 << 20
"""Weights of a layer that are unpacked at a time."""


class NotEqualError(AssertionError):
    """What was written is not equal to the source: a fault of qassay, never of the user."""


@dataclass(slots=True)
class Proof:
    """What was compared and found equal.

    Attributes:
        layers: Padded layers.
        weights: Weights of their first N channels.
        padding: Weights of the others, all zero.
        outputs: Outputs.
        tensors: Other tensors.
        bytes: Bytes of those.
    """

    layers: int = 0
    weights: int = 0
    padding: int = 0
    outputs: int = 0
    tensors: int = 0
    bytes: int = 0


def prove(
    old: Container, new: Container, padded: Sequence[PaddedLayer], watch: Watch | None
) -> Proof:
    """Return what was compared.

    Raises:
        NotEqualError: Something differs.
    """
    proof = Proof()
    before, after = assemble(old), assemble(new)
    for one in padded:
        _layer(before, after, one, proof)
        proof.layers += 1
    touched = {growth.stored.name for one in padded for growth in one.growths}
    others = {one.name: one for one in new.tensors}
    if set(others) != {one.name for one in old.tensors}:
        raise NotEqualError("the new checkpoint has other tensors")
    for stored in old.tensors:
        if stored.name not in touched:
            _same_bytes(stored, others[stored.name], watch)
            proof.tensors += 1
            proof.bytes += stored.nbytes or 0
    return proof


def _same_bytes(one: StoredTensor, other: StoredTensor, watch: Watch | None) -> None:
    if (one.type, one.shape) != (other.type, other.shape):
        raise NotEqualError(f"{one.name} has another type or shape")
    for first, second in zip(slices(one), slices(other), strict=True):
        if not np.array_equal(first, second):
            raise NotEqualError(f"{one.name} differs")
        if watch is not None:
            watch(first.size)


def _layer(before: Assembly, after: Assembly, one: PaddedLayer, proof: Proof) -> None:
    inputs = _inputs(one.columns)
    first, second = _reader(before, one.name), _reader(after, one.name)
    step = max(1, CHUNK_WEIGHTS // one.columns)
    for start in range(0, one.rows, step):
        stop = min(start + step, one.rows)
        old, new = first(start, stop), second(start, stop)
        if not _equal(old, new):
            raise NotEqualError(f"{one.name}: channels {start} to {stop} differ")
        # Without BLAS, whose order of adding may depend on the number of channels.
        outputs = [np.einsum("bk,nk->bn", inputs, _values(each)) for each in (old, new)]
        if not _same_bits(*outputs):
            raise NotEqualError(f"{one.name}: outputs of channels {start} to {stop} differ")
        proof.outputs += outputs[0].size
        proof.weights += (stop - start) * one.columns
    for start in range(one.rows, one.padded, step):
        stop = min(start + step, one.padded)
        rows = second(start, stop)
        values = rows.dequantize() if isinstance(rows, Canonical) else rows
        if np.count_nonzero(values):  # NaN counts
            raise NotEqualError(f"{one.name}: padded channels {start} to {stop} are not zero")
        proof.padding += values.size
    _bias(before, after, one)


def _bias(before: Assembly, after: Assembly, one: PaddedLayer) -> None:
    old, new = (each.modules[one.name].tensors.get("bias") for each in (before, after))
    if old is None or new is None:
        if old is not new:
            raise NotEqualError(f"{one.name}: the bias is gone, or new")
        return
    kept, raw = old.raw(), new.raw()
    if not np.array_equal(kept, raw[: kept.size]) or raw[kept.size :].any():
        raise NotEqualError(f"{one.name}: the bias differs")
    if new.shape != (one.padded,):
        raise NotEqualError(f"{one.name}: the bias has another length")


Rows = Canonical | Floats


def _reader(assembly: Assembly, name: str) -> Callable[[int, int], Rows]:
    """Return what reads rows of a layer, or of a float weight."""
    layer = next((one for one in assembly.layers if one.module == name), None)
    if layer is not None:
        found: Layer = layer
        return lambda start, stop: found.encoding.unpack(found, start, stop)
    weight = assembly.modules[name].tensors["weight"]
    return lambda start, stop: _floats(weight, start, stop)


def _floats(weight: StoredTensor, start: int, stop: int) -> Floats:
    each = (weight.nbytes or 0) // weight.shape[0]
    raw = weight.source.read(weight.offset + start * each, (stop - start) * each)
    known = cast("type[PlainEncoding]", for_stored_type(weight.type))
    with np.errstate(over="ignore", invalid="ignore"):
        return known.dequantize(raw).reshape(stop - start, -1)


def _values(rows: Rows) -> Floats:
    values = rows.dequantize() if isinstance(rows, Canonical) else rows
    # A NaN of the source stays one in both; outputs are compared where they are numbers.
    return np.where(np.isfinite(values), values, np.float32(0))


def _equal(old: Rows, new: Rows) -> bool:
    if isinstance(old, Canonical) and isinstance(new, Canonical):
        return all(_same_bits(one, two) for one, two in _fields(old, new))
    return isinstance(old, np.ndarray) and isinstance(new, np.ndarray) and _same_bits(old, new)


def _fields(old: Canonical, new: Canonical) -> Iterator[tuple[Any, Any]]:
    for name in ("codes", "scales", "groups", "zeros", "minimums", "row_groups", "table"):
        yield getattr(old, name), getattr(new, name)


def _same_bits(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(two).tobytes()


def _inputs(columns: int) -> npt.NDArray[np.float32]:
    """Return zeros, random rows and one-hot rows, `[4, K]`."""
    rng = np.random.default_rng(columns)
    hot = np.zeros((1, columns), np.float32)
    hot[0, int(rng.integers(columns))] = 1
    random = rng.standard_normal((2, columns)).astype(np.float32)
    return np.concatenate([np.zeros((1, columns), np.float32), random, hot])

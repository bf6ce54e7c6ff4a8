"""Builds modules of integer families for tests, in memory, and opens checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np

from qassay.containers.safetensors_types import safetensors_type
from qassay.core.container import StoredTensor
from qassay.encodings.layers import Canonical, Fit, Layer, LayerClaim, Module
from qassay.encodings.layers.assemble import load_families, modules_of
from qassay.encodings.registry import all_layers, open_with_encodings
from qassay.testing.recipes import MemorySource

CHECKPOINTS = Path(__file__).resolve().parent.parent / "fixtures" / "checkpoints"
NONE = LayerClaim()

_WORDS = {
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
    np.dtype(np.int16): "I16",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
    np.dtype(ml_dtypes.bfloat16): "BF16",
}

load_families()


def module(**parts: np.ndarray) -> Module:
    """Return module `m` with these tensors, each in a file of its own."""
    return Module("m", {part: stored(part, values) for part, values in parts.items()})


def stored(part: str, values: np.ndarray) -> StoredTensor:
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    kind = safetensors_type(_WORDS[values.dtype])
    return StoredTensor(
        f"m.{part}", kind, values.shape, MemorySource(raw), 0, raw.size, f"{part}.safetensors"
    )


def told(shapes: Mapping[str, tuple[str, tuple[int, ...]]], unreadable: str = "") -> Module:
    """Return module `m` with tensors of these dtypes and shapes, none of which has bytes."""
    nothing = MemorySource(np.zeros(0, np.uint8))
    tensors = {
        part: StoredTensor(
            f"m.{part}",
            safetensors_type(dtype),
            shape,
            nothing,
            0,
            0,
            "model.safetensors",
            readable=part != unreadable,
        )
        for part, (dtype, shape) in shapes.items()
    }
    return Module("m", tensors)


def fits(what: Module, claim: LayerClaim = NONE) -> dict[str, Fit]:
    """Return what every family says of a module, those that say something."""
    said = {each.id: each.fit(what, claim) for each in all_layers()}
    return {name: fit for name, fit in said.items() if fit is not None}


def only(what: Module, claim: LayerClaim = NONE) -> Layer:
    """Return the layer that a module makes up by one family and no other."""
    whole = [fit.layer for fit in fits(what, claim).values() if fit.layer and not fit.defects]
    assert len(whole) == 1, whole
    return whole[0]


def unread(what: Module, claim: LayerClaim = NONE) -> list[Fit]:
    """Return what families say of a module that none of them may read."""
    found = fits(what, claim)
    assert all(fit.layer is None for fit in found.values()), found
    return list(found.values())


def faults(what: Module, family: str, claim: LayerClaim = NONE) -> list[str]:
    """Return the parts that `family` finds wrong with a module that no family may read."""
    (fit,) = [each for each in unread(what, claim) if each.encoding.id == family]
    assert {defect.code for defect in fit.defects} <= {"Q103"}
    for defect in fit.defects:
        assert defect.tensor in {tensor.name for tensor in what.tensors.values()}
        assert defect.data["layer"] == what.name
        assert defect.expected
        assert defect.found
    return [defect.data["part"] for defect in fit.defects]


@contextmanager
def checkpoint(name: str) -> Iterator[dict[str, Module]]:
    """Yield the modules of a checkpoint."""
    container = open_with_encodings(CHECKPOINTS / name / "model.safetensors")
    try:
        yield modules_of(container.tensors)
    finally:
        container.close()


def same(one: Canonical, other: Canonical) -> None:
    """Compare every field of two canonical forms, NaN equal to NaN."""
    for name in ("codes", "scales", "groups", "zeros", "minimums", "row_groups", "table"):
        left, right = getattr(one, name), getattr(other, name)
        if left is None or right is None:
            assert left is right, name
            continue
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, name)


def words_of(codes: Sequence[Sequence[int]], bits: int) -> np.ndarray:
    """Return rows of codes laid end to end, as one large integer each, cut into int32 words."""
    count = len(codes[0])
    width = -(-count * bits // 32)
    rows = [
        sum(int(code) << (at * bits) for at, code in enumerate(row)).to_bytes(4 * width, "little")
        for row in codes
    ]
    return np.frombuffer(b"".join(rows), "<i4").reshape(len(codes), width)

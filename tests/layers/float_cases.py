"""Builds modules of float families for tests, and opens the checkpoints of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np

from qassay.core.container import Container
from qassay.encodings.layers import Canonical, Fit, Layer, LayerClaim, LayerEncoding, Module
from qassay.encodings.layers.assemble import load_families, modules_of
from qassay.encodings.registry import all_layers, open_with_encodings
from qassay.testing.safetensors_writer import write_safetensors

CHECKPOINTS = Path(__file__).resolve().parent.parent / "fixtures" / "checkpoints"
IDS = ("fp8", "mxfp4.compressed", "mxfp4.gpt_oss", "mxfp8.compressed", "nvfp4.compressed",
       "nvfp4.modelopt")  # fmt: skip

DTYPES = {
    "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U8": np.uint8,
    "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8, "I8": np.int8, "I32": np.int32,
    "I64": np.int64,
}  # fmt: skip


def family(name: str) -> type[LayerEncoding]:
    load_families()
    return next(each for each in all_layers() if each.id == name)


def families() -> list[type[LayerEncoding]]:
    return [family(name) for name in IDS]


@contextmanager
def opened(folder: Path, **tensors: tuple[str, np.ndarray]) -> Iterator[Container]:
    """Write tensors of module `m` (`_blocks` joins without a dot) and open the file."""
    path = folder / "model.safetensors"
    written = [
        (
            f"m{part}" if part.startswith("_") else f"m.{part}",
            dtype,
            list(values.shape),
            np.ascontiguousarray(values).astype(DTYPES[dtype]).tobytes(),
        )
        for part, (dtype, values) in tensors.items()
    ]
    path.write_bytes(write_safetensors(written))
    container = open_with_encodings(path)
    try:
        yield container
    finally:
        container.close()


@contextmanager
def module_of(folder: Path, **tensors: tuple[str, np.ndarray]) -> Iterator[Module]:
    """Yield the module `m` with these tensors."""
    with opened(folder, **tensors) as container:
        yield modules_of(container.tensors)["m"]


def fits(module: Module, claim: LayerClaim | None = None) -> dict[str, Fit]:
    """Return what each float family says of a module, those that say something."""
    said = {each.id: each.fit(module, claim or LayerClaim()) for each in families()}
    return {name: fit for name, fit in said.items() if fit is not None}


def only_layer(module: Module, claim: LayerClaim | None = None) -> Layer:
    """Return the layer that a module makes up by one family and no other."""
    found = fits(module, claim)
    assert len(found) == 1, list(found)
    (fit,) = found.values()
    assert fit.defects == ()
    assert fit.layer is not None
    return fit.layer


def weights(layer: Layer, start: int = 0, stop: int | None = None) -> np.ndarray:
    return unpacked(layer, start, stop).dequantize()


def unpacked(layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
    return layer.encoding.unpack(layer, start, stop)


def assert_same(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compare bit for bit; any NaN equals any other."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    kind = f"u{ours.itemsize}"
    nan = np.isnan(ours.astype(np.float32)) & np.isnan(theirs.astype(np.float32))
    same = (np.ascontiguousarray(ours).view(kind) == np.ascontiguousarray(theirs).view(kind)) | nan
    assert same.all(), f"{(~same).sum()} of {same.size} differ"

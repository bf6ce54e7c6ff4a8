"""What tpu-mlir wrote: see tests/fixtures/README.md. Every case is random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qassay.runtimes.sophgo.bfloat16 import of_bf16
from qassay.runtimes.sophgo.mlir import MlirModule, read_mlir
from qassay.runtimes.sophgo.packing import unpack
from qassay.runtimes.sophgo.weight_file import weights_of

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "tpu"


@dataclass(frozen=True)
class Case:
    """One compiled Linear: `bm1684x-1.28.1`, `w4_n128_k256_g64`."""

    folder: Path
    name: str

    def array(self, suffix: str, key: str) -> np.ndarray[Any, Any]:
        with np.load(self.folder / f"{self.name}_{suffix}.npz") as stored:
            array: np.ndarray[Any, Any] = stored[key]
            return array

    def origin(self) -> dict[str, np.ndarray[Any, Any]]:
        with np.load(self.folder / f"{self.name}_w.npz") as stored:
            return {key: stored[key] for key in stored.files}

    @property
    def bits(self) -> int:
        return 8 if self.name.startswith("w8") else 4

    def mlir(self, suffix: str) -> MlirModule:
        return read_mlir(self.folder / f"{self.name}{suffix}.mlir")

    def stored(self, suffix: str) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays of the npz that a .mlir names, in the shapes that it gives them."""
        module = self.mlir(suffix)
        with weights_of(module, self.folder) as weights:
            return {name: weights.read(name) for name in module.weights}

    def quantized(self) -> tuple[Any, Any, Any, Any]:
        """Return codes, scales, zero points and bias as the device gets them."""
        origin = self.origin()
        bias = origin.get("bias")
        if "weight" not in origin:
            codes = unpack(origin["qweight"], self.bits)
            return codes, origin["scales"], origin["qzeros"], bias
        stored = self.stored("_bm1684x_w4bf16_tpu")
        codes = unpack(stored["linear0_uint"], 4)
        return codes, of_bf16(stored["linear0_scale_bf16"]), stored["linear0_zp"], bias


@pytest.fixture(scope="session")
def tpu() -> Any:
    """Return a function from `folder/name` to a case."""

    def find(where: str) -> Case:
        folder, _, name = where.partition("/")
        return Case(FOLDER / folder, name)

    return find


@pytest.fixture(scope="session")
def tpu_folder() -> Path:
    return FOLDER

"""How Sophgo's devices and its compiler's own CPU inference multiply, bit for bit.

With xb = bf16(x), sb = bf16(s), W = (q - z) * sb in float32, Wb = bf16(W), bb = bf16(bias)::

    DEVICE   y = bf16( bf16( xb . Wb^T ) + bb )     weight rounded, product rounded, then the sum
    ONE      y = bf16( xb . Wb^T + bb )             weight rounded, one rounding at the end
    HOST     y = bf16( xb . W^T + bb )              weight not rounded, one rounding at the end

| where | model |
|---|---|
| bm1684x, bm1688: A16MatMul, 4 and 8 bits | DEVICE |
| bm1684x: MatMul that a Linear falls back to (1.30.2) | DEVICE |
| bm1688: the same, whose bias stays float32 | ONE |
| CPU inference of a tpu-dialect `.mlir`, 4 bits: what the compiler compares with | HOST |
| the same, 8 bits | ONE |

Without bias DEVICE and ONE are one. DEVICE and HOST differ in a third to two thirds of all outputs
by a unit or two in the last place; neither is wrong. The chips add up in float32. Here sums are
taken in float64 and rounded to float32 once: that equals every output of 1.28.1 and 1.30.2 that
was compared (N to 6144, K 256 and 2048, g 8 to 256), but an order of adding that lands on the
other side of a bf16 tie would differ by one unit in the last place.

Sources: the wheels' cmodel and `model_runner` (run); tpu-mlir 05452d0,
lib/Dialect/Tpu/Interfaces/Common/A16MatMul.cpp. Outputs of boards were not available.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.core.finding import Certainty
from qassay.runtimes.sophgo.bfloat16 import bf16
from qassay.runtimes.sophgo.chips import Misfit, behaviour
from qassay.runtimes.sophgo.packing import known_width
from qassay.runtimes.sophgo.quantizer import canonical

Floats = npt.NDArray[np.float32]
Where = Literal["device", "host"]


class Model(Enum):
    """One way to compute a Linear."""

    DEVICE = "dev"
    ONE = "one"
    HOST = "host"

    @property
    def rounds_weight(self) -> bool:
        """Whether the dequantized weight is rounded to bf16."""
        return self is not Model.HOST

    @property
    def rounds_product(self) -> bool:
        """Whether the product is rounded to bf16 before the bias is added."""
        return self is Model.DEVICE


@dataclass(frozen=True, slots=True)
class Computed:
    """Which model applies.

    Attributes:
        model: The model.
        operation: `A16MatMul` or `MatMul`.
        certainty: `proven` where that chip's outputs were compared.
        note: Why it is not proven; empty where it is.
    """

    model: Model
    operation: str
    certainty: Certainty
    note: str


_COMPARED = frozenset({"bm1684x", "bm1688"})


def model_of(
    chip: str,
    version: str | None = None,
    *,
    n: int,
    weight_bits: int = 4,
    q_group_size: int = 64,
    where: Where = "device",
) -> Computed | None:
    """Return how a chip, or the compiler's CPU inference, computes a Linear with N outputs.

    Returns:
        None where that Linear does not compile, or where its fall-back's arithmetic is not known.

    Raises:
        UsageError: The chip has no A16MatMul, or chip, version or width are unknown.
    """
    acts = behaviour(chip, version, weight_bits=weight_bits, q_group_size=q_group_size)
    if where == "host":
        model = Model.HOST if weight_bits == 4 else Model.ONE
        return Computed(model, "A16MatMul", Certainty.PROVEN, "")
    name = acts.chip.id
    if acts.fits(n):
        if name in _COMPARED:
            return Computed(Model.DEVICE, "A16MatMul", acts.version.certainty, acts.version.note)
        return Computed(
            Model.DEVICE, "A16MatMul", Certainty.LIKELY, f"outputs of {name} were not compared"
        )
    if acts.on_misfit is not Misfit.FALL_BACK or name not in _COMPARED:
        return None
    model = Model.DEVICE if name == "bm1684x" else Model.ONE
    return Computed(model, "MatMul", acts.misfit_certainty, acts.note)


def dequantized(codes: npt.NDArray[Any], scales: npt.ArrayLike, zeros: npt.NDArray[Any]) -> Floats:
    """Return W = (q - z) * bf16(s), float32 `[N, K]`.

    Args:
        codes: `[N, K]`.
        scales: `[N, G]`; rounded to bf16, which changes nothing if they are bf16 already.
        zeros: `[N, G]`.

    Raises:
        UsageError: The shapes do not belong together.
    """
    return canonical(codes, bf16(scales), zeros).dequantize()


@np.errstate(all="ignore")
def multiply(
    x: npt.ArrayLike, weight: npt.ArrayLike, bias: npt.ArrayLike | None = None, *, model: Model
) -> Floats:
    """Return `x W^T + bias`, float32 values of bf16 `[..., N]`, as a model computes it.

    Args:
        x: `[..., K]`; rounded to bf16.
        weight: Dequantized, `[N, K]`; HOST takes it as it is.
        bias: N values of any shape, or None; rounded to bf16.
        model: How to multiply.

    Raises:
        UsageError: The shapes do not belong together.
    """
    rows = bf16(x)
    matrix = np.asarray(weight, np.float32)
    if matrix.ndim != 2 or not rows.ndim or rows.shape[-1] != matrix.shape[1]:
        raise UsageError(
            "input and weight do not fit",
            expected=f"x [..., K] and W [N, K]; W is {list(matrix.shape)}",
            found=f"x is {list(rows.shape)}",
        )
    n = matrix.shape[0]
    used = bf16(matrix) if model.rounds_weight else matrix
    product = rows.astype(np.float64) @ used.astype(np.float64).T
    if bias is None:
        return bf16(product.astype(np.float32))
    added = bf16(np.asarray(bias, np.float32).reshape(-1))
    if added.shape != (n,):
        raise UsageError("bias and weight do not fit", expected=str(n), found=str(added.size))
    if model.rounds_product:
        return bf16(bf16(product.astype(np.float32)) + added)
    return bf16((product + added).astype(np.float32))


def linear(
    x: npt.ArrayLike,
    codes: npt.NDArray[Any],
    scales: npt.ArrayLike,
    zeros: npt.NDArray[Any],
    bias: npt.ArrayLike | None = None,
    *,
    model: Model,
) -> Floats:
    """Return the output `[..., N]` of a quantized Linear; see `dequantized` and `multiply`."""
    return multiply(x, dequantized(codes, scales, zeros), bias, model=model)


def every_model(weight_bits: int) -> tuple[Model, ...]:
    """Return the models that occur at a width, the device's first.

    Raises:
        UsageError: A16MatMul has no such width.
    """
    known_width(weight_bits)
    return tuple(Model) if weight_bits == 4 else (Model.DEVICE, Model.ONE)

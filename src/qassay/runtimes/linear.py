"""How runtimes compute a Linear: the same weights and input, and not always the same output.

`linear(x, W, on=...)` multiplies as one of these does:

`candle:cpu`, `ggml:cpu`
    The activations are quantized first, to the partner of the weights' type (Q8_0, Q8_1, Q8_K).
    A NaN among them becomes an ordinary number: a finite output does not mean a finite input.
`candle:metal`
    The weights are dequantized inside the kernel and meet float32 activations.
`candle:dequantize-all`
    What CANDLE_DEQUANTIZE_ALL=1 does: weights dequantized, then an ordinary float32 product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Encoding, Floats
from qassay.encodings.registry import by_id
from qassay.runtimes.arithmetic import halves, of_halves
from qassay.runtimes.arithmetic_products import CANDLE, CANDLE_PAIRS, GGML, Weights

PATHS = ("candle:cpu", "candle:dequantize-all", "candle:metal", "ggml:cpu")
"""What `on` may be."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A quantized weight matrix.

    Attributes:
        raw: The stored bytes, row after row.
        encoding: What they mean.
        shape: `(N, K)`: output channels, input features.
    """

    raw: Bytes
    encoding: type[Encoding]
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        n, k = self.shape
        blocks, rest = divmod(k, self.encoding.block)
        if rest or self.raw.size != n * blocks * self.encoding.block_bytes:
            raise UsageError(
                f"these bytes are no {self.encoding.id} matrix of shape [{n}, {k}]",
                expected=f"K a multiple of {self.encoding.block} and"
                f" {n * blocks * self.encoding.block_bytes} bytes",
                found=f"{self.raw.size} bytes",
            )

    def values(self) -> Floats:
        """Return the dequantized weights `[N, K]`."""
        return self.encoding.dequantize(np.ascontiguousarray(self.raw).reshape(-1)).reshape(
            self.shape
        )


Weight = Matrix | tuple[Bytes, "str | type[Encoding]", tuple[int, int]] | npt.NDArray[Any]


@np.errstate(all="ignore")
def linear(x: npt.ArrayLike, weight: Weight, *, on: str) -> Floats:
    """Return `x W^T`, float32 `[M, N]`, as the path `on` computes it.

    Args:
        x: Activations `[M, K]` or `[K]`; converted to float32.
        weight: A `Matrix`, or its three parts, or floats `[N, K]`.
        on: One of `PATHS`.

    Raises:
        UsageError: There is no such path, it does not multiply that type, or shapes disagree.
    """
    if on not in PATHS:
        raise UsageError("no such path", expected=", ".join(PATHS), found=repr(on))
    rows = np.atleast_2d(np.ascontiguousarray(x, np.float32))
    matrix = _matrix(weight)
    shape = matrix.shape
    if len(shape) != 2 or rows.ndim != 2 or rows.shape[1] != shape[1]:
        raise UsageError(
            "input and weight do not fit",
            expected=f"x [M, K] and W [N, K]; W is {list(shape)}",
            found=f"x is {list(rows.shape)}",
        )
    if isinstance(matrix, Matrix) and on.endswith(":cpu"):
        return _on_cpu(rows, matrix, on.partition(":")[0])
    values = matrix.values() if isinstance(matrix, Matrix) else matrix
    return np.asarray(rows @ values.T, np.float32)


def _matrix(weight: Weight) -> Matrix | Floats:
    if isinstance(weight, Matrix):
        return weight
    if isinstance(weight, tuple):
        raw, encoding, shape = weight
        return Matrix(raw, by_id(encoding) if isinstance(encoding, str) else encoding, shape)
    return np.asarray(weight, np.float32)


def _on_cpu(rows: Floats, matrix: Matrix, program: str) -> Floats:
    """Multiply with quantized activations; types without blocks meet activations of their own."""
    encoding = matrix.encoding
    if not issubclass(encoding, BlockEncoding):
        return _plain_on_cpu(rows, matrix, program)
    known = CANDLE if program == "candle" else GGML
    if encoding.id not in known:
        raise UsageError(
            f"{program}:cpu has no product for {encoding.id} here",
            expected=", ".join(known),
            found=encoding.id,
        )
    blocks = matrix.shape[1] // encoding.block
    if program == "candle" and encoding.id in CANDLE_PAIRS and blocks % 2:
        raise UsageError(
            f"candle's CPU path refuses {encoding.id} rows of an odd number of blocks",
            expected=f"K a multiple of {2 * encoding.block}",
            found=str(matrix.shape[1]),
        )
    partner, product = known[encoding.id]
    weights = Weights(encoding, np.ascontiguousarray(matrix.raw).reshape(-1), matrix.shape[0])
    return product(weights, partner(rows, program=program))


def _plain_on_cpu(rows: Floats, matrix: Matrix, program: str) -> Floats:
    """Multiply F32, F16 or BF16 weights: ggml rounds the activations to the weights' type.

    candle dequantizes such weights and multiplies as usual. The sum is NumPy's float32 product;
    ggml's own order depends on the vector width.
    """
    if program == "ggml" and matrix.encoding.id == "f16":
        rows = of_halves(halves(rows))
    elif program == "ggml" and matrix.encoding.id == "bf16":
        bits = rows.view(np.uint32)
        rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        rows = np.where(np.isnan(rows), rows, rounded.astype(np.uint32).view(np.float32))
    return np.asarray(rows @ matrix.values().T, np.float32)

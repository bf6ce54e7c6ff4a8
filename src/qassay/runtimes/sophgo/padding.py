"""More output channels, so that N becomes a multiple of P, and a proof that nothing changed.

A padded channel has to be nothing: its codes equal its zero point (not zero bytes), its scale is
an ordinary number, its bias is 0. Then it dequantizes to zeros, and the output's first N columns
are the old output: `Y = Y'[..., :N]`. The crop belongs before whatever reads the output next.
Run on bm1684x (16 to 64, 96 to 128): the crop equals the fall-back bit for bit, the rest is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.runtimes.sophgo.arithmetic import Model, linear
from qassay.runtimes.sophgo.bfloat16 import bf16
from qassay.runtimes.sophgo.packing import known_width
from qassay.runtimes.sophgo.quantizer import canonical

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A quantized Linear.

    Attributes:
        codes: `[N, K]`, uint8.
        scales: float32 `[N, G]`.
        zeros: uint8 `[N, G]`.
        bias: float32, N values in its last axis, or None.
        weight_bits: 4 or 8.
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats
    zeros: npt.NDArray[np.uint8]
    bias: Floats | None
    weight_bits: int

    @property
    def n(self) -> int:
        """Output channels."""
        return int(self.codes.shape[0])


@dataclass(frozen=True, slots=True)
class Difference:
    """What a padded Linear gets wrong.

    Attributes:
        what: `weights`, `padding`, `bias` or `outputs`.
        count: How many values differ.
    """

    what: str
    count: int


def padded_to(n: int, lanes: int) -> int:
    """Return the least multiple of P that is at least N.

    Raises:
        UsageError: N or P is not positive.
    """
    if n < 1 or lanes < 1:
        raise UsageError("nothing to pad", expected="N and P >= 1", found=f"N {n}, P {lanes}")
    return -(-n // lanes) * lanes


def pad(original: Linear, lanes: int, *, zero: int | None = None, scale: float = 1.0) -> Linear:
    """Return the Linear with channels added at the end until P divides N.

    Args:
        original: Is returned as it is where P divides N already.
        lanes: P.
        zero: Code and zero point of the new channels; None for 8 at 4 bits and 128 at 8.
        scale: Of the new channels. It never reaches an output; 1 is legal in every format.

    Raises:
        UsageError: `zero` does not fit, or `scale` is not finite and positive as bf16.
    """
    bits = known_width(original.weight_bits)
    target = padded_to(original.n, lanes)
    code = 1 << (bits - 1) if zero is None else zero
    if not 0 <= code < 1 << bits:
        raise UsageError(
            f"a code of {bits} bits", expected=f"0 to {(1 << bits) - 1}", found=str(code)
        )
    stored = float(bf16(scale))
    if not (np.isfinite(stored) and stored > 0):
        raise UsageError(
            "the scale of padded channels is not legal",
            expected="positive and finite as bf16",
            found=str(scale),
        )
    more = target - original.n
    if not more:
        return original
    return Linear(
        codes=_with_rows(original.codes, more, code),
        scales=_with_rows(original.scales, more, scale),
        zeros=_with_rows(original.zeros, more, code),
        bias=None if original.bias is None else _with_columns(original.bias, more),
        weight_bits=bits,
    )


def pad_floats(weight: npt.NDArray[Any], lanes: int) -> npt.NDArray[Any]:
    """Return a float weight `[N, K]` with zero rows added until P divides N."""
    return _with_rows(weight, padded_to(weight.shape[0], lanes) - weight.shape[0], 0)


def crop(outputs: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """Return the first N columns of an output `[..., N']`.

    Raises:
        UsageError: There are fewer.
    """
    if not outputs.ndim or outputs.shape[-1] < n:
        raise UsageError("nothing to crop", expected=f"[..., >= {n}]", found=str(outputs.shape))
    return outputs[..., :n]


def differences(
    original: Linear, padded: Linear, *, model: Model = Model.DEVICE, seed: int = 0
) -> list[Difference]:
    """Return how a padded Linear differs from its original; nothing if it is equal to it.

    Compared bit for bit: the dequantized weights of the first N channels, the zeros of the rest,
    the bias, and the cropped outputs for zeros, random rows and one-hot inputs.
    """
    n, k = original.codes.shape
    first = canonical(original.codes, bf16(original.scales), original.zeros).dequantize()
    second = canonical(padded.codes, bf16(padded.scales), padded.zeros).dequantize()
    if padded.n < n or second.shape[1] != k:
        return [Difference("weights", int(first.size))]
    found = {
        "weights": _unequal(first, second[:n]),
        "padding": int(np.count_nonzero(second[n:])),
        "bias": _bias_difference(original.bias, padded.bias, n),
    }
    if not found["bias"]:
        rng = np.random.default_rng(seed)
        x = np.concatenate(
            [
                np.zeros((1, k), np.float32),
                rng.standard_normal((4, k), np.float32),
                np.eye(k, dtype=np.float32)[rng.permutation(k)[:4]],
            ]
        )
        old, new = (
            linear(x, one.codes, one.scales, one.zeros, one.bias, model=model)
            for one in (original, padded)
        )
        found["outputs"] = _unequal(old, crop(new, n)) + int(np.count_nonzero(new[:, n:]))
    return [Difference(what, count) for what, count in found.items() if count]


def _bias_difference(original: Floats | None, padded: Floats | None, n: int) -> int:
    if original is None or padded is None:
        present = padded if original is None else original
        return 0 if present is None else max(int(np.count_nonzero(present)), 1)
    if padded.shape[-1] < n:
        return n
    tail = int(np.count_nonzero(padded[..., n:]))
    return _unequal(original, padded[..., :n]) + tail


def _unequal(first: Floats, second: Floats) -> int:
    """Return how many float32 values differ in their bits."""
    a, b = (
        np.ascontiguousarray(x, np.float32).view(np.uint32).reshape(-1) for x in (first, second)
    )
    return int((a != b).sum())


def _with_rows(array: npt.NDArray[Any], more: int, value: float) -> npt.NDArray[Any]:
    return np.concatenate([array, np.full((more, *array.shape[1:]), value, array.dtype)])


def _with_columns(array: npt.NDArray[Any], more: int) -> npt.NDArray[Any]:
    tail = np.zeros((*array.shape[:-1], more), array.dtype)
    return np.concatenate([array, tail], axis=-1)

"""What a setup gives under each documented arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from qassay.compare.attribution.inputs import Inputs
from qassay.compare.attribution.setup import Floats, Index, Setup
from qassay.runtimes.sophgo.arithmetic import Model

Prediction = tuple[Model, Floats]


def quick_bf16(values: npt.NDArray[np.float32]) -> Floats:
    """Return float32 rounded to bf16, ties to even; the fast way for values that are no NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded &= 0xFFFF0000
    done: Floats = rounded.view(np.float32)
    lost = np.isnan(values)
    if lost.any():
        done[lost] = np.nan
    return done


def bias_of(setup: Setup) -> Floats | None:
    """Return the bias as it enters the sum, None where none does."""
    if setup.bias is None or setup.bias_mode == "none":
        return None
    bias = quick_bf16(setup.bias)
    return quick_bf16(bias * np.float32(2)) if setup.bias_mode == "doubled" else bias


@np.errstate(all="ignore")
def predict(
    setup: Setup,
    inputs: Inputs,
    models: Iterable[Model],
    *,
    rows: Index | None = None,
    channels: Index | None = None,
    fast: bool = False,
) -> Iterator[Prediction]:
    """Yield the output `[M, N]` under each model.

    Args:
        setup: What the device holds.
        inputs: What it is given.
        models: Arithmetics; those that share a weight share the work.
        rows: Only these inputs.
        channels: Only these outputs.
        fast: Add up in float32, for a first look.
    """
    which: Index | slice = slice(None) if channels is None else channels
    scales = setup.scales if setup.exact_scales else quick_bf16(setup.scales)
    weight = setup.weight(which, scales)
    x = inputs.values(setup.x_mode)
    if rows is not None:
        x = x[rows]
    if setup.x_columns is not None:
        x = x[:, setup.x_columns]
    if not fast:
        x = x.astype(np.float64)
    bias = bias_of(setup)
    if bias is not None:
        bias = bias[which]
    sums: dict[bool, npt.NDArray[np.floating]] = {}
    for model in models:
        product = sums.get(model.rounds_weight)
        if product is None:
            used = quick_bf16(weight) if model.rounds_weight else weight
            product = sums[model.rounds_weight] = x @ used.T.astype(x.dtype)
        yield model, _finish(product, bias, model, twice=setup.bias_mode == "twice")


def _finish(
    product: npt.NDArray[np.floating], bias: Floats | None, model: Model, *, twice: bool
) -> Floats:
    if bias is None:
        return quick_bf16(product.astype(np.float32))
    if model.rounds_product:
        done = quick_bf16(quick_bf16(product.astype(np.float32)) + bias)
    else:
        done = quick_bf16((product + bias).astype(np.float32))
    return quick_bf16(done + bias) if twice else done


def weight_rms(setup: Setup, channels: Index | None = None) -> Floats:
    """Return the root mean square of each channel's weights, `[N]`.

    From what is stored, not from an error, so that a tolerance never grows with the fault.
    """
    which: Index | slice = slice(None) if channels is None else channels
    weight = setup.weight(which, setup.scales)
    return np.sqrt(np.einsum("nk,nk->n", weight, weight) / max(1, weight.shape[1]))

"""What a setup gives under each documented arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.inputs import Inputs
from qassay.comparison.attribution.setup import Floats, Index, Setup, quick_bf16
from qassay.runtimes.sophgo.arithmetic import Model

Prediction = tuple[Model, Floats]


def bias_of(setup: Setup, channels: Index | slice = slice(None)) -> Floats | None:
    """Return the bias as it enters the sum, None where none does."""
    if setup.bias is None or setup.bias_mode == "none":
        return None
    bias = quick_bf16(setup.bias[channels])
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
    weight: Floats | None = None,
) -> Iterator[Prediction]:
    """Yield the output `[M, N]` under each model.

    Args:
        setup: What the device holds.
        inputs: What it is given.
        models: Arithmetics; those that share a weight share the work.
        rows: Only these inputs.
        channels: Only these outputs.
        fast: Add up in float32, for a first look.
        weight: The setup's weight, where it is at hand.
    """
    which: Index | slice = slice(None) if channels is None else channels
    weight = setup.weight(which) if weight is None else weight
    x = inputs.values(setup.x_mode)
    if rows is not None:
        x = x[rows]
    if setup.x_columns is not None:
        x = x[:, setup.x_columns]
    if not fast:
        x = x.astype(np.float64)
    bias = bias_of(setup, which)
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


def weight_rms(weight: Floats) -> Floats:
    """Return the root mean square of each channel's weights, `[N]`.

    From a weight, not from an error, so that a tolerance never grows with the fault.
    """
    power = np.einsum("nk,nk->n", weight, weight) / max(1, weight.shape[1])
    return np.asarray(np.sqrt(power), np.float32)

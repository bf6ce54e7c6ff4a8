"""Which arrays of inputs and outputs belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from qassay.comparison.attribution.setup import Floats
from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.run.diagnose_arrays import Array, as_floats


@dataclass(frozen=True, slots=True)
class Named:
    """What the command line says of inputs and outputs.

    Attributes:
        inputs: The file of inputs, as errors name it.
        device: The file of outputs.
        input_name: Name of the array of inputs.
        output_name: Name of the array of outputs.
    """

    inputs: str
    device: str
    input_name: str | None = None
    output_name: str | None = None


def pairs(
    inputs: Mapping[str, Array], outputs: Mapping[str, Array], k: int, n: int, given: Named
) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield name, inputs `[M, K]` and outputs `[M, N']` that belong together.

    Arrays of one name belong together; else the one array of inputs and the one of outputs. Dumps
    of a whole model hold the inputs as well: where something else fits, those are no outputs.

    Raises:
        UsageError: It is not clear which belong together, or none do.
    """
    ins = {
        name: array for name, array in inputs.items()
        if array.ndim and array.shape[-1] == k and given.input_name in (None, name)
    }  # fmt: skip
    outs = {name: array for name, array in outputs.items() if given.output_name in (None, name)}
    if not ins or not outs:
        name = given.output_name if ins else given.input_name
        lost = name is not None and name not in (outputs if ins else inputs)
        what = "outputs" if ins else "inputs of this weight"
        raise UsageError(
            f"no array is called {safe(name or '', 80)}" if lost else f"no {what}",
            path=given.device if ins else given.inputs,
            expected=f"an array [..., {n if ins else k}]",
            found=_listed(outputs if ins else inputs),
            hint=None if ins or lost else "are these the inputs of another layer?",
        )
    outs = _without_inputs(ins, outs, n)
    shared = [name for name in ins if name in outs]
    if shared and given.output_name is None:
        for name in shared:
            yield name, *_rows(name, ins[name], outs[name], (k, n), given)
        return
    if len(ins) > 1:
        raise UsageError(
            "which inputs?",
            path=given.inputs,
            found=_listed(ins),
            hint="name them with --input-name",
        )
    [(_, x)] = ins.items()
    rows = x.size // k
    fitting = {name: y for name, y in outs.items() if _fits(y, rows, n)}
    exact = {name: y for name, y in fitting.items() if y.shape[-1] == n and y.dtype.kind == "f"}
    chosen = exact or fitting
    name = _only(chosen, outputs, (rows, n), given)
    yield name, *_rows(name, x, chosen[name], (k, n), given)


def _without_inputs(
    ins: Mapping[str, Array], outs: Mapping[str, Array], n: int
) -> dict[str, Array]:
    """Return the outputs without copies of the inputs, where anything else fits the inputs."""
    same = {
        name
        for name in ins
        if name in outs
        and np.array_equal(np.ravel(ins[name]), np.ravel(outs[name]), equal_nan=True)
    }
    sizes = {array.size // array.shape[-1] for array in ins.values()}
    rest = {name: array for name, array in outs.items() if name not in same}
    fits = any(_fits(array, rows, n) for array in rest.values() for rows in sizes)
    return rest if fits else dict(outs)


def _only(
    chosen: Mapping[str, Array], outputs: Mapping[str, Array], shape: tuple[int, int], given: Named
) -> str:
    rows, n = shape
    if not chosen:
        raise UsageError(
            "no outputs of this weight",
            path=given.device,
            expected=f"[..., {rows}, {n}]",
            found=_listed(outputs),
            hint=_advice(outputs, rows, n),
        )
    first, *rest = chosen
    for other in rest:
        if not np.array_equal(np.ravel(chosen[first]), np.ravel(chosen[other]), equal_nan=True):
            raise UsageError(
                "which outputs?",
                path=given.device,
                found=_listed(chosen),
                hint="name them with --output-name",
            )
    return first


def _fits(y: Array, rows: int, n: int) -> bool:
    if not y.ndim or not rows:
        return False
    width = y.size // rows
    if y.size != rows * width:
        return False
    # A flat dump has the order of rows; of any other, the last axis holds the channels.
    axes = [axis for axis in y.shape if axis != 1] or [1]
    if width == n:
        return len(axes) == 1 or n in (axes[-1], y.shape[-1])
    return y.shape[-1] == width and n < width <= 2 * n + 256


def _advice(outputs: Mapping[str, Array], rows: int, n: int) -> str | None:
    """Return what may have gone wrong with outputs of which none fits."""
    for array in outputs.values():
        axes = [axis for axis in array.shape if axis != 1]
        if len(axes) > 1 and axes[-1] != n and n in axes[:-1] and array.size == rows * n:
            return f"transpose it: the last axis has to be that of the {n} output channels"
        if axes and axes[-1] == n and array.size % n == 0:
            return (f"the inputs have {rows} rows and the outputs {array.size // n}: give the ones"
                    " that belong to each other")  # fmt: skip
        if axes and array.size == rows * axes[-1]:
            cut = ", or was a part of it left out" if axes[-1] < n else ""
            return f"is this the output of another layer{cut}? It has {axes[-1]} channels"
    return None


def _rows(
    name: str, x: Array, y: Array, shape: tuple[int, int], given: Named
) -> tuple[Floats, Floats]:
    k, n = shape
    rows = x.size // k
    if not _fits(y, rows, n):
        raise UsageError(
            f"{safe(name, 80)}: inputs and outputs do not belong together",
            path=given.device,
            expected=f"{rows} rows of {n} outputs",
            found=str(list(y.shape)),
            hint=_advice({name: y}, rows, n),
        )
    return as_floats(x, name).reshape(rows, k), as_floats(y, name).reshape(rows, -1)


def _listed(arrays: Mapping[str, Array]) -> str:
    some = [f"{safe(name, 40)} {list(array.shape)}" for name, array in list(arrays.items())[:6]]
    return ", ".join(some) + (", ..." if len(arrays) > 6 else "")

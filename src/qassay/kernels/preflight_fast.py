"""The preflight's pass over floats in Numba, for stored bits of any width.

A loop over 32 elements spends more on beginning and ending than on the elements, so that a run is
loaded as one vector and reduced by LLVM's own reduction. Integer maxima have no rounding, so the
order of the reduction does not matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from qassay.kernels.jit import helper, kernel
from qassay.kernels.loads import _pointer, _typed_intrinsic, cast
from qassay.kernels.preflight_reference import RUN, Patterns, runs_a_row


@_typed_intrinsic
def _largest_of_run(_typing: Any, array: Any, at: Any, mask: Any) -> Any:
    """Return the largest of the `RUN` elements from `at` on, each cut down to `mask`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, offset, mask = arguments
        element = ir.IntType(signature.args[0].dtype.bitwidth)
        vector = ir.VectorType(element, RUN)
        place = _pointer(context, builder, signature.args[0], data, offset, vector)
        loaded = builder.load(place, align=1)
        lane0 = ir.Constant(ir.IntType(32), 0)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), RUN), [0] * RUN)
        single = builder.insert_element(ir.Constant(vector, ir.Undefined), mask, lane0)
        splat = builder.shuffle_vector(single, single, lanes)
        reduce = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(element, [vector]),
            f"llvm.vector.reduce.umax.v{RUN}i{element.width}",
        )
        return builder.call(reduce, [builder.and_(loaded, splat)])

    return array.dtype(array, at, mask), generate


@helper
def _largest(values, one, mask):
    top = cast(0, one)
    for at in range(values.size):
        top = max(top, cast(values[at] & mask, one))
    return top


@kernel
def _run_extremes(bits, columns, run, one, mask, found):
    number = 0
    for row in range(bits.size // columns):
        start = row * columns
        last = start + columns
        for _ in range(columns // run):
            found[number] = _largest_of_run(bits, start, mask)
            number += 1
            start += run
        if start < last:
            found[number] = _largest(bits[start:last], one, mask)
            number += 1


def run_extremes(bits: Patterns, columns: int) -> Patterns:
    """Return the largest magnitudes of runs; the same as `preflight_reference.run_extremes`."""
    kind = bits.dtype.type
    found = np.empty(bits.size // columns * runs_a_row(columns), bits.dtype)
    mask = kind((1 << (8 * bits.itemsize - 1)) - 1)
    _run_extremes(bits, columns, RUN, kind(1), mask, found)
    return found

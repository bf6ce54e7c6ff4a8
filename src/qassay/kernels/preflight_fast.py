"""The preflight's pass over floats in Numba, for stored bits of any width.

The scan that an audit makes, with the largest magnitude of every run beside it: one load serves
all questions. LLVM does not vectorise a loop that begins and ends every 32 elements, so a run is
loaded as one vector, and the vectors of smallest values and of counts stay in registers over a
whole segment. Integer extremes and counts have no rounding: their order does not matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from qassay.kernels.fast_values import _below, _extremes, _segment, _zeros, value_scan
from qassay.kernels.jit import kernel
from qassay.kernels.loads import _pointer, _typed_intrinsic, cast
from qassay.kernels.preflight_reference import RUN, Patterns, runs_a_row
from qassay.kernels.reference import ValueScan


def _splat(builder: Any, value: Any) -> Any:
    """Return a vector of `RUN` times `value`."""
    vector = ir.VectorType(value.type, RUN)
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), RUN), [0] * RUN)
    lane0 = ir.Constant(ir.IntType(32), 0)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, lane0)
    return builder.shuffle_vector(single, single, lanes)


def _reduced(builder: Any, how: str, vector: Any) -> Any:
    element = vector.type.element
    kind = ir.FunctionType(element, [vector.type])
    name = f"llvm.vector.reduce.{how}.v{RUN}i{element.width}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [vector])


def _chosen(builder: Any, sign: str, left: Any, right: Any) -> Any:
    return builder.select(builder.icmp_unsigned(sign, left, right), left, right)


@_typed_intrinsic
def _read_runs(_typing: Any, array: Any, at: Any, runs: Any, mask: Any, found: Any, to: Any) -> Any:
    """Read `runs` times `RUN` elements from `at` on, each cut down to `mask`.

    The largest of each run goes to `found` from `to` on. Returned are the largest of all, the
    smallest after 1 is taken from each (zero drops out: it wraps), and the number of zeros.
    """
    result = types.UniTuple(array.dtype, 3)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, offset, count, mask, found, to = arguments
        element = ir.IntType(signature.args[0].dtype.bitwidth)
        vector = ir.VectorType(element, RUN)
        none = ir.Constant(vector, [0] * RUN)
        ones = ir.Constant(vector, [1] * RUN)
        masks = _splat(builder, mask)
        source = _pointer(context, builder, signature.args[0], data, offset, vector)
        target = _pointer(context, builder, signature.args[4], found, to, element)
        # LLVM turns these into registers.
        high, low, zeros = (cgutils.alloca_once(builder, vector) for _ in range(3))
        for place, begin in ((high, none), (low, ir.Constant(vector, [-1] * RUN)), (zeros, none)):
            builder.store(begin, place)
        with cgutils.for_range(builder, count) as loop:
            loaded = builder.load(builder.gep(source, [loop.index]), align=1)
            sizes = builder.and_(loaded, masks)
            builder.store(_reduced(builder, "umax", sizes), builder.gep(target, [loop.index]))
            builder.store(_chosen(builder, ">", sizes, builder.load(high)), high)
            less = builder.sub(sizes, ones)
            builder.store(_chosen(builder, "<", less, builder.load(low)), low)
            zero = builder.zext(builder.icmp_unsigned("==", sizes, none), vector)
            builder.store(builder.add(builder.load(zeros), zero), zeros)
        ends = [
            _reduced(builder, how, builder.load(place))
            for how, place in (("umax", high), ("umin", low), ("add", zeros))
        ]
        return context.make_tuple(builder, signature.return_type, ends)

    return result(array, at, runs, mask, found, to), generate


@kernel
def _scan_runs(bits, columns, segment, run, one, mask, normal, small, totals, dead, marks, found):
    """Do what `fast_values._scan` does, and fill `found` with the largest of every run."""
    largest = cast(0, one)
    smallest = cast(largest - one, one)
    dead_rows = 0
    number = 0
    runs_done = 0
    for row in range(bits.size // columns):
        top = cast(0, one)
        last = (row + 1) * columns
        for start in range(row * columns, last, segment):
            stop = min(start + segment, last)
            whole = (stop - start) // run
            high, low, zeros = _read_runs(bits, start, whole, mask, found, runs_done)
            runs_done += whole
            totals[0] += np.int64(zeros)
            begun = start + whole * run
            if begun < stop:
                found[runs_done], least = _extremes(bits[begun:stop], mask, one)
                totals[0] += _zeros(bits[begun:stop], mask, one)
                low = min(low, least)
                high = max(high, found[runs_done])
                runs_done += 1
            top = max(top, high)
            smallest = min(smallest, low)
            if low < normal:
                totals[1] += _below(bits[start:stop], mask, normal, one)
            if low < small:
                totals[2] += _below(bits[start:stop], mask, small, one)
                marks[number] = 1
            number += 1
        largest = max(largest, top)
        if top == cast(0, one):
            dead[dead_rows] = row
            dead_rows += 1
    return largest, smallest, dead_rows


def scan_runs(
    bits: Patterns, columns: int, least_normal: int, small: int, found: Patterns
) -> ValueScan:
    """Scan float bit patterns; the same as `preflight_reference.scan_runs`."""
    kind = bits.dtype.type
    one, mask = kind(1), kind((1 << (8 * bits.itemsize - 1)) - 1)
    segment = _segment(bits)
    rows = bits.size // columns
    if found.size != rows * runs_a_row(columns) or found.dtype != bits.dtype:
        raise ValueError(f"{found.size} places for the runs of {rows} rows of {columns}")
    totals = np.zeros(3, np.int64)
    dead = np.empty(rows, np.int64)
    marks = np.zeros(rows * -(-columns // segment), np.uint8)
    limits = kind(least_normal - 1), kind(small)
    largest, smallest, dead_rows = _scan_runs(
        bits, columns, segment, RUN, one, mask, *limits, totals, dead, marks, found
    )
    return value_scan(largest, smallest, dead_rows, totals, dead, marks, int(mask))

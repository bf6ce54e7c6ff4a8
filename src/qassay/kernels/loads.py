"""Loads and casts that NumPy arrays do not offer to Numba code.

Blocks have odd sizes (34, 18, 17 bytes), so their fields are not aligned and cannot be viewed as
wider integers. These intrinsics load them with one instruction; bounds are the caller's duty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from typing import cast as typed

from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic

F = TypeVar("F", bound=Callable[..., Any])

VECTOR = 16
"""Bytes that `equal_mask` compares at once."""


def _typed_intrinsic(function: F) -> Callable[..., Any]:
    """Make an intrinsic; compiled code calls it without the leading typing context."""
    return typed("Callable[..., Any]", _intrinsic(function))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, to: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), to.as_pointer())


@_typed_intrinsic
def load_u16(_typing: Any, array: Any, offset: Any) -> Any:
    """Load the little-endian 16-bit integer at byte `offset` of a uint8 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(16)
        data, offset = arguments
        at = _pointer(context, builder, signature.args[0], data, offset, word)
        return builder.load(at, align=1)

    return types.uint16(array, offset), generate


@_typed_intrinsic
def load_u64(_typing: Any, array: Any, offset: Any) -> Any:
    """Load the little-endian 64-bit integer at byte `offset` of a uint8 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        data, offset = arguments
        at = _pointer(context, builder, signature.args[0], data, offset, word)
        return builder.load(at, align=1)

    return types.uint64(array, offset), generate


@_typed_intrinsic
def equal_mask(_typing: Any, array: Any, offset: Any, _byte: Any) -> Any:
    """Return a bit for each of the `VECTOR` bytes from `offset` on that equals `byte`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, offset, byte = arguments
        vector = ir.VectorType(ir.IntType(8), VECTOR)
        at = _pointer(context, builder, signature.args[0], data, offset, vector)
        loaded = builder.load(at, align=1)
        lane0 = ir.Constant(ir.IntType(32), 0)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), VECTOR), [0] * VECTOR)
        single = builder.insert_element(ir.Constant(vector, ir.Undefined), byte, lane0)
        splat = builder.shuffle_vector(single, single, lanes)
        mask = builder.bitcast(builder.icmp_unsigned("==", loaded, splat), ir.IntType(VECTOR))
        return builder.zext(mask, ir.IntType(32))

    return types.uint32(array, offset, types.uint8), generate


@_typed_intrinsic
def cast(_typing: Any, value: Any, like: Any) -> Any:
    """Return `value` converted to the type of `like`.

    Numba widens integers in nearly every operation; converting back at once is what lets LLVM
    keep a whole loop in the narrow width.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], signature.args[0], signature.return_type)

    return like(value, like), generate

"""Vectors for Numba code: `LANES` float32 or int32 numbers that one instruction works on.

ggml's searches are serial inside a sub-block, so the fast kernels give each lane a super-block of
its own and keep running sums in registers. Arithmetic exists between vectors of one type only:
nothing can become a double unnoticed. Every operation is the IEEE one, never contracted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar
from typing import cast as typed

import numba
from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, register_model

LANES = 16
FLOAT_VECTOR = ir.VectorType(ir.FloatType(), LANES)
INT_VECTOR = ir.VectorType(ir.IntType(32), LANES)
BYTE_VECTOR = ir.VectorType(ir.IntType(8), LANES)
BIT_VECTOR = ir.VectorType(ir.IntType(1), LANES)

Generator = Callable[[Any, Any, Any, Any], Any]
F = TypeVar("F", bound=Callable[..., Any])


def inner(function: F) -> F:
    """Compile a function that only kernels call, without what Python or C would call it by.

    Those wrappers are a third of the time that compiling takes.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return typed("F", numba.njit(nogil=True, error_model="numpy", **options)(function))


class Lanes(types.Type):  # type: ignore[misc]
    """The Numba type of a vector."""

    def __init__(self, kind: str, llvm: ir.VectorType) -> None:
        self.llvm = llvm
        super().__init__(name=f"lanes_{kind}")


FLOATS = Lanes("float32", FLOAT_VECTOR)
INTS = Lanes("int32", INT_VECTOR)
MASK = Lanes("bool", BIT_VECTOR)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, kind.llvm)


def _operator(
    python: Callable[..., Any], instructions: dict[Lanes, Generator], result: Lanes | None = None
) -> None:
    """Let `python` work on two vectors of one type."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, given: Any, _keywords: Any) -> Any:
            if len(given) == 2 and given[0] == given[1] and given[0] in instructions:
                return signature(result or given[0], *given)
            return None

    infer_global(python)(Template)

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return instructions[signature.args[0]](context, builder, signature, arguments)

    lower_builtin(python, Lanes, Lanes)(lower)


def _plain(name: str) -> Generator:
    return lambda _context, builder, _signature, given: getattr(builder, name)(*given)


def _compared(name: str, relation: str) -> Generator:
    return lambda _context, builder, _signature, given: getattr(builder, name)(relation, *given)


_operator(operator.add, {FLOATS: _plain("fadd"), INTS: _plain("add")})
_operator(operator.sub, {FLOATS: _plain("fsub"), INTS: _plain("sub")})
_operator(operator.mul, {FLOATS: _plain("fmul"), INTS: _plain("mul")})
_operator(operator.truediv, {FLOATS: _plain("fdiv")})
_operator(operator.and_, {INTS: _plain("and_"), MASK: _plain("and_")})
_operator(operator.or_, {INTS: _plain("or_"), MASK: _plain("or_")})
_operator(operator.lshift, {INTS: _plain("shl")})
_operator(operator.rshift, {INTS: _plain("lshr")})
for _python, _relation in (
    (operator.lt, "<"),
    (operator.gt, ">"),
    (operator.eq, "=="),
):
    _operator(
        _python,
        {
            FLOATS: _compared("fcmp_ordered", _relation),
            INTS: _compared("icmp_signed", _relation),
        },
        MASK,
    )
# NaN differs from everything: the one comparison that is true of it.
_operator(
    operator.ne,
    {FLOATS: _compared("fcmp_unordered", "!="), INTS: _compared("icmp_signed", "!=")},
    MASK,
)

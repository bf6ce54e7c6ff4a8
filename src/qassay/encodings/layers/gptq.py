"""GPTQ: words along the input axis, zero points along the output axis, groups by an index.

Also what AutoRound writes in that layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.encodings.layers.base import Fit, Layer, LayerEncoding, Module, Part, Role
from qassay.encodings.layers.canonical import Canonical
from qassay.encodings.layers.claims import LayerClaim
from qassay.encodings.layers.fitting import (
    FLOATS,
    Dim,
    Fitting,
    by_index,
    fitting_of_words,
    floats_at,
    in_order,
    span,
    with_nowhere,
)
from qassay.encodings.layers.layout import CodeLayout, Form, Zeros
from qassay.encodings.layers.words import pack, unpack, words_for

BITS = (2, 3, 4, 8)
"""Widths that are packed continuously; 5, 6 and 7 exist as planes only (`gptq_p`)."""

_V1 = frozenset({"", "gptq", "auto_round:auto_gptq", "auto_round:gptq"})
_V2 = frozenset({"gptq_v2", "auto_round", "auto_round:gptqmodel"})
_OF_OTHER_SHAPES = frozenset({"gemm", "gemv", "auto_round:auto_awq", "auto_round:awq"})


class gptq(LayerEncoding, id="gptq"):
    """GPTQ codes in 32-bit words along the input axis, a zero point for every scale.

    ::

        qweight [K * bits / 32, N]   code k of a column n takes the bits k * bits and up of
                                     qweight[0, n], qweight[1, n], ... laid end to end
        qzeros  [G, N * bits / 32]   the same along the output axis
        scales  [G, N]
        g_idx   [K]                  the group of each input; without it, k // (K / G)

    v1 (`checkpoint_format` "gptq", `auto_round:auto_gptq`) stores the zero point minus one, and
    readers add it before they mask, so that 2^bits - 1 means 0. v2 ("gptq_v2", `auto_round`,
    `auto_round:gptqmodel`) stores it as it is. Headers do not tell the two apart: the
    configuration does, and v1 is what its silence means (`options["zero_offset"]`: 1 or 0).

    Not read: `gptq_p` (widths in planes, same shapes), Marlin and other layouts of one kernel,
    words that are not 32 bits wide.
    """

    parts = (
        Part("qweight", Role.CODES, ("I32",)),
        Part("qzeros", Role.ZERO, ("I32",)),
        Part("scales", Role.SCALE, FLOATS),
        Part("g_idx", Role.INDEX, ("I32", "I64"), required=False),
    )
    methods = ("gptq", *sorted((_V1 | _V2) - {""}))
    scales_by_group = True
    formula = "scales[g_idx[k], n] * (qweight[k, n] - ((qzeros[g_idx[k], n] + zero_offset) & mask))"
    sources = (
        "AutoGPTQ auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py (pack, forward)",
        "GPTQModel gptqmodel/nn_modules/qlinear/__init__.py; utils/model.py (v1 and v2)",
        "GPTQModel: 5, 6 and 7 bits are planar only (FORMAT.GPTQ_P)",
        "auto-round auto_round/inference/backend.py (GPTQ_FORMAT, GPTQ_FORMAT_NO_ZP)",
    )

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how a module's tensors fit; bits follow from `qzeros` and `scales`."""
        fitting = fitting_of_words(cls, module, claim)
        if not isinstance(fitting, Fitting):
            return fitting
        width, rows = module.shape("qweight")
        bits = _bits(module, rows, claim)
        if bits is None:
            cls._without_bits(fitting, rows)
            return fitting.result()
        columns = width * 32 // bits
        groups = _groups(module, rows)
        if fitting.require("qweight") and width * 32 % bits:
            fitting.misshaped("qweight", (f"a multiple of {bits}", rows))
        fitting.require("scales", (groups, rows))
        fitting.require("qzeros", (groups, words_for(rows, bits)))
        indexed = fitting.optional("g_idx", (columns,))
        if claim.act_order and "g_idx" not in module.tensors:
            fitting.require("g_idx", (columns,))
        group = None
        if isinstance(groups, int):
            group = span(columns, groups, claim.group_size)
            if group is None and indexed and 0 < groups <= columns:
                group = -(-columns // groups)
        if group is None and fitting.sound:
            wanted = f"a number of groups that divides {columns}"
            fitting.fault("scales", f"{columns} inputs are no {groups} groups", wanted, str(groups))
        if fitting.sound and (reason := _unread_format(claim, bits)):
            return fitting.unread(reason)
        if not fitting.sound or group is None:
            return fitting.result()
        offset = 0 if claim.format.lower() in _V2 else 1
        return fitting.layer(bits, rows, columns, group, options={"zero_offset": offset})

    @classmethod
    def _without_bits(cls, fitting: Fitting, rows: int) -> None:
        """Note why the width of a code cannot be told: `qzeros` is missing or of a wrong shape."""
        groups = _groups(fitting.module, rows)
        fitting.require("scales", (groups, rows))
        widths = [words_for(rows, bits) for bits in BITS]
        fitting.require("qzeros", *((groups, width) for width in widths))

    @classmethod
    def layout(cls, layer: Layer) -> CodeLayout | None:
        """Return where the codes lie, if they are 4 bits wide and fill their words."""
        if layer.bits != 4 or layer.columns % 8 or layer.group % 8:
            return None
        return CodeLayout(Form.COLUMNS, zeros=Zeros("qzeros", offset=layer.options["zero_offset"]))

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return output channels `start` to `stop`.

        A column whose `g_idx` is negative, or not less than the number of groups, belongs to no
        scale: its group is one further than there are, whose scale is NaN, so that its weights
        are NaN. Nothing is clipped.
        """
        stop = layer.rows if stop is None else stop
        codes = unpack(layer.array("qweight")[:, start:stop], layer.bits, layer.columns, axis=0)
        mask = (1 << layer.bits) - 1
        stored = unpack(layer.array("qzeros"), layer.bits, stop, start).T
        zeros = ((stored.astype(np.int16) + layer.options["zero_offset"]) & mask).astype(np.int16)
        scales = floats_at(layer, "scales", np.s_[:, start:stop]).T
        if "g_idx" not in layer.parts:
            return Canonical(codes, scales, in_order(layer), zeros)
        groups, outside = by_index(layer.array("g_idx"), scales.shape[1])
        if outside:
            scales, wide = with_nowhere(scales, zeros)
            return Canonical(codes, scales, groups, wide)
        return Canonical(codes, scales, groups, zeros)

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return `qweight` and `qzeros`; a zero point of 0 wraps to 2^bits - 1 in v1."""
        assert canonical.zeros is not None  # noqa: S101 - `unpack` gives them
        count = layer.parts["scales"].shape[0]
        zeros = (canonical.zeros[:, :count] - layer.options["zero_offset"]) & (
            (1 << layer.bits) - 1
        )
        return {
            "qweight": pack(canonical.codes, layer.bits, axis=0),
            "qzeros": pack(zeros.T, layer.bits),
        }


def _bits(module: Module, rows: int, claim: LayerClaim) -> int | None:
    """Return the width of a code that makes `qzeros` as wide as it is."""
    shape = module.shape("qzeros")
    if len(shape) != 2:
        return None
    able = [bits for bits in range(1, 9) if words_for(rows, bits) == shape[1]]
    exact = [bits for bits in able if rows * bits % 32 == 0]
    if claim.bits in able:
        return claim.bits
    return next(iter(exact or able), None)


def _groups(module: Module, rows: int) -> Dim:
    """Return how many groups there are, by `scales`, or by `qzeros` where that is misshaped."""
    scales, zeros = module.shape("scales"), module.shape("qzeros")
    if len(scales) == 2 and scales[1] == rows:
        return scales[0]
    return zeros[0] if len(zeros) == 2 else "groups"


def _unread_format(claim: LayerClaim, bits: int) -> str:
    """Return why a layout that has GPTQ's shapes is not read, "" for one that is."""
    name = claim.format.lower()
    if bits not in BITS:
        return f"GPTQ codes of {bits} bits exist in planes only (gptq_p), which are not read"
    own = claim.method.lower() in ("gptq", "auto-round", "intel/auto-round")
    known = name in _V1 or name in _V2 or name in _OF_OTHER_SHAPES
    if name == "gptq_p" or (own and not known):
        return "the configuration calls the packing by a name that is not read"
    return ""

"""AWQ: 4-bit codes, eight to a word, in two layouts (GEMM and GEMV)."""

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
    fitting_of_words,
    floats_at,
    in_order,
    span,
)
from qassay.encodings.layers.layout import CodeLayout, Form, Zeros
from qassay.encodings.layers.words import AWQ_ORDER, pack, pack_awq, unpack, unpack_awq

_AUTO_ROUND = ("auto_round:auto_awq", "auto_round:awq")
_UNREAD = frozenset({"gemv_fast", "marlin", "exllama", "exllamav2", "llm-awq", "ipex", "bitblas"})


class awq(LayerEncoding, id="awq"):
    """AWQ in the GEMM layout: 4-bit codes, eight output channels to a word in AWQ's order.

    ::

        qweight [K, N / 8]    bits 0-3 4-7 8-11 12-15 16-19 20-23 24-27 28-31
                              n   = 0   2   4    6     1     3     5     7    (+ 8 * word)
        qzeros  [K / g, N / 8]   the same
        scales  [K / g, N]

    Zero points are stored as they are. Not read: `gemv_fast`, `marlin`, `exllama`, the int16
    words of llm-awq.
    """

    parts = (
        Part("qweight", Role.CODES, ("I32",)),
        Part("qzeros", Role.ZERO, ("I32",)),
        Part("scales", Role.SCALE, FLOATS),
    )
    methods = ("awq", "gemm", *_AUTO_ROUND)
    scales_by_group = True
    formula = "(qweight[k, n] - qzeros[k / g, n]) * scales[k / g, n]"
    sources = (
        "AutoAWQ awq/modules/linear/gemm.py; awq/utils/packing_utils.py",
        "auto-round auto_round/inference/backend.py (AWQ_FORMAT)",
    )

    @classmethod
    def claimed(cls, claim: LayerClaim) -> bool:
        """Tell whether the configuration names this layout, which is AWQ's default."""
        return super().claimed(claim) and claim.format.lower() != "gemv"

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how a module's tensors fit: `scales` is eight times as wide as the words."""
        fitting = fitting_of_words(cls, module, claim)
        if not isinstance(fitting, Fitting):
            return fitting
        columns, width = module.shape("qweight")
        rows = 8 * width
        scales, zeros = module.shape("scales"), module.shape("qzeros")
        groups: Dim = "groups"
        if len(scales) == 2 and scales[1] == rows:
            groups = scales[0]
        elif len(zeros) == 2 and zeros[1] == width:
            groups = zeros[0]
        fitting.require("qweight")
        fitting.require("scales", (groups, rows))
        fitting.require("qzeros", (groups, width))
        group = span(columns, groups, claim.group_size) if isinstance(groups, int) else None
        if group is None and fitting.sound:
            wanted = f"a number of groups that divides {columns}"
            fitting.fault("scales", f"{columns} inputs are no {groups} groups", wanted, str(groups))
        if fitting.sound and claim.method.lower() == "awq" and claim.format.lower() in _UNREAD:
            return fitting.unread(f"the AWQ layout {claim.format.lower()} is not read")
        if not fitting.sound or group is None:
            return fitting.result()
        return fitting.layer(4, rows, columns, group)

    @classmethod
    def layout(cls, layer: Layer) -> CodeLayout | None:
        """Return where the codes lie."""
        del layer
        return CodeLayout(Form.LANES, lanes=AWQ_ORDER, zeros=Zeros("qzeros", lanes=AWQ_ORDER))

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return output channels `start` to `stop`."""
        stop = layer.rows if stop is None else stop
        codes = unpack_awq(layer.array("qweight"), start, stop)
        zeros = unpack_awq(layer.array("qzeros"), start, stop).astype(np.int16)
        scales = floats_at(layer, "scales", np.s_[:, start:stop]).T
        return Canonical(codes, scales, in_order(layer), zeros)

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return `qweight` and `qzeros`."""
        del layer
        assert canonical.zeros is not None  # noqa: S101 - `unpack` gives them
        return {"qweight": pack_awq(canonical.codes), "qzeros": pack_awq(canonical.zeros)}


def gemv_width(columns: int, group: int) -> int:
    """Return how many words of zero points a row has: those of its groups, and padding.

    Source: AutoAWQ awq/modules/linear/gemv.py, calculate_zeros_width.
    """
    multiple = {64: 2, 32: 4}.get(group, 1)
    words = -(-(columns // group) // 8)
    return -(-words // multiple) * multiple


class awq_gemv(LayerEncoding, id="awq.gemv"):
    """AWQ in the GEMV layout: 4-bit codes, eight inputs to a word in natural order.

    ::

        qweight [N, K / 8]    input k in bits 4 * (k % 8) and up of word k // 8
        qzeros  [N, Z]        group j in bits 4 * (j % 8) and up of word j // 8
        scales  [N, 8 * Z]    group j in column j; the columns from K / g on are padding

    Z is padded, so that shapes can leave the group size open: the configuration decides among
    those that give this Z, else there has to be just one of 32, 64 and 128.
    """

    parts = (
        Part("qweight", Role.CODES, ("I32",)),
        Part("qzeros", Role.ZERO, ("I32",)),
        Part("scales", Role.SCALE, FLOATS),
    )
    methods = ("gemv",)
    formula = "(qweight[n, k] - qzeros[n, k / g]) * scales[n, k / g]"
    sources = ("AutoAWQ awq/modules/linear/gemv.py (from_linear, calculate_zeros_width)",)

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how a module's tensors fit: all three have a row for each output channel."""
        rows = {module.shape(part)[:1] for part in ("qweight", "qzeros", "scales")}
        if len(rows) != 1 and not cls.claimed(claim):
            return None
        fitting = fitting_of_words(cls, module, claim)
        if not isinstance(fitting, Fitting):
            return fitting
        count, words = module.shape("qweight")
        columns = 8 * words
        scales, zeros = module.shape("scales"), module.shape("qzeros")
        sizes = [128, 64, 32]
        if claim.group_size is not None and claim.group_size > 128:
            sizes.append(claim.group_size)
        width: Dim = "width"
        if len(zeros) == 2:
            width = zeros[1]
        elif len(scales) == 2 and scales[1] % 8 == 0:
            width = scales[1] // 8
        fitting.require("qweight")
        fitting.require("qzeros", (count, width))
        fitting.require("scales", (count, 8 * width if isinstance(width, int) else "8 * width"))
        if not fitting.sound:
            return fitting.result()
        able = [
            size for size in sizes if columns % size == 0 and gemv_width(columns, size) == width
        ]
        if claim.group_size in able:
            return fitting.layer(4, count, columns, claim.group_size)
        if not able:
            return fitting.unread(f"no group size gives {width} words of zero points a row")
        if len(able) > 1:
            return fitting.unread("its shapes leave the group size open, and no configuration says")
        return fitting.layer(4, count, columns, able[0])

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return output channels `start` to `stop`; padding is left out."""
        stop = layer.rows if stop is None else stop
        codes = unpack(layer.array("qweight")[start:stop], 4, layer.columns)
        zeros = unpack(layer.array("qzeros")[start:stop], 4, layer.groups).astype(np.int16)
        scales = floats_at(layer, "scales", np.s_[start:stop, : layer.groups])
        return Canonical(codes, scales, in_order(layer), zeros)

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return `qweight` and `qzeros`, padded with zeros."""
        assert canonical.zeros is not None  # noqa: S101 - `unpack` gives them
        zeros = np.zeros((layer.rows, 8 * layer.parts["qzeros"].shape[1]), np.uint8)
        zeros[:, : layer.groups] = canonical.zeros
        return {"qweight": pack(canonical.codes, 4), "qzeros": pack(zeros, 4)}

"""8-bit floats with scales in a second tensor: per tensor, channel, group or block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.container import Defect, StoredTensor
from qassay.encodings.layers.base import Fit, Layer, LayerEncoding, Module, Part, Role
from qassay.encodings.layers.canonical import Canonical
from qassay.encodings.layers.claims import LayerClaim
from qassay.encodings.layers.fitting import in_order
from qassay.encodings.layers.layout import CodeLayout
from qassay.encodings.layers.narrow import (
    E8M0_DTYPES,
    FLOATS,
    Parts,
    float8,
    float8_layout,
    is_mx_scale,
    matrix_of,
    packed_like,
    rows_of,
    scalar_shape,
    shape_text,
    shown,
    stored_scales,
)

_CODES = ("F8_E4M3", "F8_E5M2")
_SCALES = ("weight_scale", "weight_scale_inv")
_USUAL = 128


@dataclass(frozen=True, slots=True)
class _Grid:
    """How scales lie over a weight: each serves `group_rows` rows of `group` columns."""

    group_rows: int
    group: int
    what: str


class fp8(LayerEncoding, id="fp8"):
    """8-bit floats with scales in a second tensor that multiply them.

    `weight` is F8_E4M3 or F8_E5M2, `[N, K]` or `[experts, N, K]`. `weight_scale`, or
    `weight_scale_inv`, holds one scale a tensor (`[]`, `[1]`, `[1, 1]`), a channel (`[N]`,
    `[N, 1]`), a group of a row (`[N, K / g]`) or a block (`[ceil(N / b), ceil(K / b)]`, the last
    ones ragged). Both names mean a multiplier, "inv" or not. Scales are floats, or bytes that
    mean powers of two (E8M0). No file states the size of a block beside its tensors: it is what
    the configuration says where the shapes allow that, else 128, else the smallest power of two
    or exact division that gives these shapes.

    Other scales beside it (`input_scale` and the like) are about activations.
    """

    parts = (
        Part("weight", Role.CODES, _CODES),
        Part("weight_scale", Role.SCALE, (*FLOATS, *E8M0_DTYPES)),
        Part(
            "weight_scale_inv",
            Role.SCALE,
            (*FLOATS, *E8M0_DTYPES),
            required=False,
            instead_of="weight_scale",
        ),
        Part("input_scale", Role.ACTIVATION, FLOATS, required=False),
        Part("input_scale_inv", Role.ACTIVATION, FLOATS, required=False),
        Part("input_scale_ub", Role.ACTIVATION, FLOATS, required=False),
        Part("activation_scale", Role.ACTIVATION, FLOATS, required=False),
        Part("activation_scale_inv", Role.ACTIVATION, FLOATS, required=False),
        Part("input_zero_point", Role.ACTIVATION, (*FLOATS, *_CODES, "I8", "U8"), required=False),
        Part("output_scale", Role.ACTIVATION, FLOATS, required=False),
    )
    methods = (
        "fp8",
        "fbgemm_fp8",
        "float-quantized",
        "naive-quantized",
        "auto_round:fp8",
        "auto_round:fp8_static",
        "FP8",
        "FP8_PB_WO",
        "FP8_PB_REAL",
        "FP8_PER_CHANNEL_PER_TOKEN",
    )
    sources = (
        "DeepSeek-V3, inference/kernel.py, weight_dequant_kernel",
        "compressed-tensors, quantization/lifecycle/forward.py, _dequantize",
        "NVIDIA modelopt, torch/export/quant_utils.py",
        "OCP 8-bit Floating Point Specification (OFP8) 1.0, table 2",
    )
    formula = "weight * weight_scale"

    @classmethod
    def label(cls, layer: Layer) -> str:
        """Return `fp8.e4m3` or `fp8.e5m2`."""
        return f"{cls.id}.{str(layer.codes.type.label)[3:].lower()}"

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how the tensors fit.

        A weight of 8-bit floats without any scale is a plain cast, which is legal, unless the
        configuration says that this very layer is of this family: then its scale is missing (Q103).
        Axes other than `[N, K]` and `[experts, N, K]` are not read.
        """
        weight = module.tensors.get("weight")
        named = [name for name in _SCALES if name in module.tensors]
        if weight is None:
            return cls._without_weight(module, claim, named)
        if weight.type.label not in _CODES or len(weight.shape) not in (2, 3):
            return None
        # A zero point would have to be subtracted; floats with one are not known from any tool.
        if "weight_zero_point" in module.tensors or "weight_scale_2" in module.tensors:
            return None
        if not named and not (cls.claimed(claim) and claim.quantized):
            return None
        parts = Parts(cls, module)
        parts.take("weight")
        if len(named) > 1:
            return _both(parts, weight)
        scale = parts.take(named[0] if named else cls._expected_name(claim))
        if scale is not None and _is_mx(weight, scale, claim):
            return None
        return parts.fit(_layer(parts, scale, claim))

    @classmethod
    def _without_weight(cls, module: Module, claim: LayerClaim, named: list[str]) -> Fit | None:
        """Say that scales have lost their weight, where they can be those of no other family."""
        others = {"weight_packed", "qweight", "weight_scale_2", "weight_global_scale"}
        if not named or not cls.claimed(claim) or others & set(module.tensors):
            return None
        parts = Parts(cls, module)
        parts.take("weight")
        return parts.fit(None)

    @classmethod
    def _expected_name(cls, claim: LayerClaim) -> str:
        inverse = claim.method == "fp8" or claim.format.startswith("auto_round")
        return "weight_scale_inv" if inverse and claim.block else "weight_scale"

    @classmethod
    def layout(cls, layer: Layer) -> CodeLayout | None:
        """Return where the codes lie."""
        return float8_layout(str(layer.parts["weight"].type.label))

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return rows `start` to `stop` (of all experts' rows in turn) in canonical form.

        Codes are the stored bytes, their values in `table`. The scales are as stored, widened to
        float32, so that a weight is one product, rounded once; compressed-tensors rounds that
        product to the dtype of the model.
        """
        start, stop = rows_of(layer, start, stop)
        stored = layer.array("weight").reshape(layer.total_rows, layer.columns)
        name = scale_name(layer.parts)
        picked = _row_groups(layer, layer.parts[name].size // layer.groups, start, stop)
        low, high = (int(picked[0]), int(picked[-1]) + 1) if picked.size else (0, 0)
        own = layer.group_rows == 1 and high - low == stop - start
        return Canonical(
            codes=stored[start:stop],
            scales=stored_scales(layer, name, low, high),
            groups=in_order(layer),
            row_groups=None if own else np.asarray(picked - low, np.int32),
            table=float8(str(layer.parts["weight"].type.label)),
        )

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return `weight` as uint8 bit patterns in its stored shape.

        Raises:
            ValueError: The codes are not those of the whole layer.
        """
        return packed_like(layer, "weight", canonical.codes, nibbles=False)


def scale_name(parts: Mapping[str, StoredTensor]) -> str:
    """Return which of the names of a scale a layer uses."""
    return next(name for name in _SCALES if name in parts)


def _is_mx(weight: StoredTensor, scale: StoredTensor, claim: LayerClaim) -> bool:
    """Tell whether scales are MXFP8's, by their shape or because the configuration says so."""
    said = claim.format == "mxfp8-quantized" and scale.type.label in E8M0_DTYPES
    return said or is_mx_scale(weight, scale)


def _both(parts: Parts, weight: StoredTensor) -> Fit:
    names = " and ".join(_SCALES)
    parts.defects.append(
        Defect(
            code="Q105",
            message=f"{parts.called} has both {names}; a weight has one scale",
            path=weight.path,
            tensor=weight.name,
            data={"layer": parts.module.name, "parts": list(_SCALES)},
        )
    )
    return parts.fit(None)


def _layer(parts: Parts, scale: StoredTensor | None, claim: LayerClaim) -> Layer | None:
    weight = parts.taken.get("weight")
    if weight is None:
        return None
    found = matrix_of(weight.shape)
    if found is None:
        parts.wrong(weight, "weight", "[N, K] with elements", shape_text(weight))
        return None
    if scale is None:
        return None
    experts, rows, columns = found
    grid = _grid(scale.shape, found, claim)
    if grid is None:
        lead = "" if experts is None else f"{experts}, "
        expected = f"[1], [{lead}{rows}, 1] or one scale a block or group of [{rows}, {columns}]"
        name = scale_name(parts.module.tensors)
        parts.wrong(scale, name, expected, shape_text(scale))
        return None
    parts.take_optional()
    name = scale_name(parts.taken)
    return Layer(
        module=parts.module.name,
        encoding=parts.encoding,
        parts=parts.taken,
        bits=8,
        rows=rows,
        columns=columns,
        group=grid.group,
        group_rows=grid.group_rows,
        experts=experts,
        symmetric=True,
        claim=claim,
        evidence=(f"weight is {shown(weight)}", f"{name} is {shown(scale)}: {grid.what}"),
    )


def _grid(
    shape: Sequence[int], matrix: tuple[int | None, int, int], claim: LayerClaim
) -> _Grid | None:
    """Return how scales of a shape lie over a weight; None where they do not."""
    experts, rows, columns = matrix
    block = claim.block if claim.block and min(claim.block) > 0 else None
    if scalar_shape(shape, experts):
        if block and block[0] >= rows and block[1] >= columns:
            return _Grid(*block, what=f"one scale for {block[0]} by {block[1]} weights")
        return _Grid(rows, columns, what="one scale for all" if experts is None else "one a matrix")
    if experts is not None:
        if not shape or shape[0] != experts:
            return None
        shape = shape[1:]
    if len(shape) == 1:
        shape = (shape[0], 1)
    if len(shape) != 2 or shape[0] > rows or shape[1] > columns or min(shape) < 1:
        return None
    down, along = int(shape[0]), int(shape[1])
    if (down, along) == (rows, 1) and not (block and block[0] == 1 and block[1] >= columns):
        return _Grid(1, columns, what="one scale a channel")
    tall = _span(rows, down, block[0] if block else None)
    wide = _span(columns, along, block[1] if block else claim.group_size)
    if tall is None or wide is None:
        return None
    if tall == 1:
        return _Grid(1, wide, what=f"one scale for {wide} weights of a row")
    return _Grid(tall, wide, what=f"one scale for {tall} by {wide} weights")


def _span(size: int, count: int, claimed: int | None) -> int | None:
    """Return how long the runs are if `count` of them cover `size`; the last may be ragged.

    That is what the configuration claims if it gives this count, else 128 if that does. Else it
    is a power of two, or the exact quotient; and None where neither gives this count, because
    any other length would be invented to make a wrong shape fit.
    """
    if count == size and not (claimed and claimed > 0 and size == 1):
        return 1
    exact = [size // count] if size % count == 0 else []
    powers = [1 << bit for bit in range(1, size.bit_length() + 1)]
    for length in (claimed or 0, _USUAL, *(sorted(powers + exact) if count > 1 else exact)):
        if length > 0 and -(-size // length) == count:
            return length
    return None


def _row_groups(layer: Layer, stored: int, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Return the row of the scales, of which there are `stored`, for rows `start` to `stop`."""
    if stored == 1:
        return np.zeros(stop - start, np.int64)
    expert, row = np.divmod(np.arange(start, stop), layer.rows)
    return expert * -(-layer.rows // layer.group_rows) + row // layer.group_rows

"""NVFP4: 4-bit floats, an 8-bit float scale for 16 of them, and a scale for the tensor."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qassay.encodings.layers.base import Fit, Layer, LayerEncoding, Module, Part, Role
from qassay.encodings.layers.canonical import Canonical, Floats
from qassay.encodings.layers.claims import LayerClaim
from qassay.encodings.layers.fitting import in_order
from qassay.encodings.layers.layout import CodeLayout
from qassay.encodings.layers.narrow import (
    Parts,
    e2m1,
    e2m1_layout,
    float8,
    matrix_of,
    packed_like,
    rows_of,
    scalar_of_rows,
    scalar_shape,
    shape_text,
    shown,
    unpack_pairs,
)

_GROUP = 16


class _NVFP4(LayerEncoding):
    """What both packings share; they differ in names and in what the tensor's scale does.

    Attributes:
        held: Part with the codes.
        overall: Part with the scale of the whole tensor.
        divides: Whether that scale divides.
    """

    held: ClassVar[str]
    overall: ClassVar[str]
    divides: ClassVar[bool]

    @classmethod
    def label(cls, layer: Layer) -> str:
        """Return `nvfp4`, whatever the packing."""
        del layer
        return "nvfp4"

    @classmethod
    def _layer(cls, parts: Parts, claim: LayerClaim) -> Layer | None:
        codes = parts.take(cls.held)
        scale = parts.take("weight_scale")
        overall = parts.take(cls.overall)
        found = None if codes is None else matrix_of(codes.shape)
        if codes is None:
            return None
        if found is None:
            parts.wrong(codes, cls.held, "[N, K / 2] with elements", shape_text(codes))
            return None
        experts, rows, columns = found[0], found[1], 2 * found[2]
        lead = codes.shape[:-1]
        wanted = (*lead, columns // _GROUP)
        if columns % _GROUP:
            expected = f"a multiple of {_GROUP // 2} bytes a row"
            parts.wrong(codes, cls.held, expected, shape_text(codes))
        elif scale is not None and scale.shape != wanted:
            parts.wrong(scale, "weight_scale", f"{list(wanted)}", shape_text(scale))
        if overall is not None and not scalar_shape(overall.shape, experts):
            expected = "one number" if experts is None else f"one number, or [{experts}]"
            parts.wrong(overall, cls.overall, expected, shape_text(overall))
        if parts.defects or scale is None or overall is None:
            return None
        parts.take_optional()
        verb = "divides" if cls.divides else "multiplies"
        return Layer(
            module=parts.module.name,
            encoding=cls,
            parts=parts.taken,
            bits=4,
            rows=rows,
            columns=columns,
            group=_GROUP,
            experts=experts,
            symmetric=True,
            claim=claim,
            evidence=(
                f"{cls.held} is {shown(codes)}: two codes a byte",
                f"weight_scale is {shown(scale)}: one scale for {_GROUP} weights of a row",
                f"{cls.overall} is {shown(overall)}, which {verb}",
            ),
        )

    @classmethod
    def layout(cls, layer: Layer) -> CodeLayout | None:
        """Return where the codes lie."""
        del layer
        return e2m1_layout()

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return rows `start` to `stop` (of all experts' rows in turn) in canonical form.

        The scale of the tensor is combined with the group's first, rounded to float32, and the
        weight is the product of that and the code: the order in which compressed-tensors and
        modelopt calculate, too.
        """
        start, stop = rows_of(layer, start, stop)
        packed = layer.array(cls.held).reshape(layer.total_rows, -1)
        stored = layer.array("weight_scale").reshape(layer.total_rows, -1)
        overall = scalar_of_rows(layer.floats(cls.overall), layer, start, stop)
        return Canonical(
            codes=unpack_pairs(packed[start:stop]),
            scales=cls._combined(float8("F8_E4M3")[stored[start:stop]], overall),
            groups=in_order(layer),
            table=e2m1(),
        )

    @classmethod
    def _combined(cls, scales: Floats, overall: Floats) -> Floats:
        # A scale that is zero or not finite gives infinities and NaN: that is what it decodes to.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.asarray(scales / overall if cls.divides else scales * overall, np.float32)

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return the packed codes, uint8 `[..., N, K / 2]`.

        Raises:
            ValueError: The codes are not those of the whole layer.
        """
        return packed_like(layer, cls.held, canonical.codes, nibbles=True)


class nvfp4_compressed(_NVFP4, id="nvfp4.compressed"):
    """NVFP4 as compressed-tensors packs it: the scale of the tensor divides.

    `weight_packed` is U8 `[N, K / 2]`, element 2i in the low half of byte i; `weight_scale` is
    F8_E4M3 `[N, K / 16]`; `weight_global_scale` is one F32, 448 * 6 over the largest weight.
    Each may have experts as a first axis. Of a tensor whose largest weight is 0 or NaN,
    compressed-tensors makes the global scale 1.
    """

    held = "weight_packed"
    overall = "weight_global_scale"
    divides = True
    parts = (
        Part("weight_packed", Role.CODES, ("U8",)),
        Part("weight_scale", Role.SCALE, ("F8_E4M3",)),
        Part("weight_global_scale", Role.GLOBAL, ("F32",)),
        Part("input_global_scale", Role.ACTIVATION, ("F32",), required=False),
    )
    methods = ("nvfp4-pack-quantized",)
    sources = (
        "compressed-tensors, compressors/nvfp4",
        "compressed-tensors, quantization/utils/helpers.py, generate_gparam",
        "OCP Microscaling Formats (MX) Specification 1.0, 5.3.3 (E2M1)",
    )
    formula = "e2m1[weight_packed] * (weight_scale / weight_global_scale)"

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how the tensors fit: codes in bytes beside 8-bit float or global scales."""
        parts = Parts(cls, module)
        scale = module.tensors.get("weight_scale")
        if not parts.has("weight_packed", "weight_global_scale"):
            return None
        if not parts.has("weight_global_scale") and not cls.claimed(claim):
            codes = module.tensors["weight_packed"]
            narrow = scale is not None and scale.type.label == "F8_E4M3"
            if codes.type.label != "U8" or not narrow:
                return None
        return parts.fit(cls._layer(parts, claim))


class nvfp4_modelopt(_NVFP4, id="nvfp4.modelopt"):
    """NVFP4 as NVIDIA modelopt packs it: the scale of the tensor multiplies.

    `weight` is U8 `[N, K / 2]`, element 2i in the low half of byte i; `weight_scale` is F8_E4M3
    `[N, K / 16]`; `weight_scale_2` is one F32, the largest weight over 448 * 6. Each may have
    experts as a first axis. modelopt writes 1 for the scale of a group of zeros.
    """

    held = "weight"
    overall = "weight_scale_2"
    divides = False
    parts = (
        Part("weight", Role.CODES, ("U8",)),
        Part("weight_scale", Role.SCALE, ("F8_E4M3",)),
        Part("weight_scale_2", Role.GLOBAL, ("F32",)),
        Part("input_scale", Role.ACTIVATION, ("F32",), required=False),
        Part("pre_quant_scale", Role.ACTIVATION, ("F32", "BF16", "F16"), required=False),
    )
    methods = ("NVFP4", "NVFP4_AWQ", "NVFP4_SVDQUANT", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "nvfp4")
    sources = (
        "NVIDIA modelopt, torch/quantization/qtensor/nvfp4_tensor.py",
        "OCP Microscaling Formats (MX) Specification 1.0, 5.3.3 (E2M1)",
    )
    formula = "e2m1[weight] * (weight_scale * weight_scale_2)"

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how the tensors fit: codes in bytes beside 8-bit float scales."""
        weight = module.tensors.get("weight")
        scale = module.tensors.get("weight_scale")
        parts = Parts(cls, module)
        claimed = cls.claimed(claim) and claim.quantized is True
        if weight is None and not (scale is not None and parts.has("weight_scale_2")):
            return None
        if weight is not None and weight.type.label != "U8":
            return None
        narrow = scale is not None and scale.type.label == "F8_E4M3"
        if not (narrow or parts.has("weight_scale_2") or claimed):
            return None
        return parts.fit(cls._layer(parts, claim))

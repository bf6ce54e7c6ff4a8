"""OCP microscaling formats: 4-bit and 8-bit floats, a power of two for each 32 of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.container import StoredTensor
from qassay.encodings.layers.base import Fit, Layer, LayerEncoding, Module, Part, Role
from qassay.encodings.layers.canonical import Canonical, Floats
from qassay.encodings.layers.claims import LayerClaim
from qassay.encodings.layers.fitting import in_order
from qassay.encodings.layers.layout import CodeLayout
from qassay.encodings.layers.narrow import (
    E8M0_DTYPES,
    FLOATS,
    Parts,
    e2m1,
    e2m1_layout,
    e8m0,
    float8,
    float8_layout,
    is_mx_scale,
    matrix_of,
    packed_like,
    rows_of,
    shape_text,
    shown,
    unpack_pairs,
)

_GROUP = 32
_MX = "OCP Microscaling Formats (MX) Specification 1.0, 5.3 and 5.4"


class _MX_Layer(LayerEncoding):
    """What the packings share: a byte e for 32 weights of a row that stands for 2^(e - 127).

    e = 255 is NaN in the standard, and so it is here. compressed-tensors' decompressor gives
    infinity there (2^128 in bfloat16), gpt-oss' too, ggml 2^127.
    """

    @classmethod
    def label(cls, layer: Layer) -> str:
        """Return `mxfp4` or `mxfp8`, whatever the packing."""
        del layer
        return cls.id.partition(".")[0]

    @classmethod
    def _built(
        cls,
        parts: Parts,
        codes: StoredTensor,
        scale: StoredTensor,
        matrix: tuple[int | None, int, int],
        claim: LayerClaim,
        bits: int,
    ) -> Layer:
        parts.take_optional()
        experts, rows, columns = matrix
        per_byte = "two codes a byte" if bits == 4 else "one code a byte"
        return Layer(
            module=parts.module.name,
            encoding=cls,
            parts=parts.taken,
            bits=bits,
            rows=rows,
            columns=columns,
            group=_GROUP,
            experts=experts,
            symmetric=True,
            claim=claim,
            evidence=(
                f"its codes are {shown(codes)}: {per_byte}",
                f"its scales are {shown(scale)}: one power of two for {_GROUP} weights of a row",
            ),
        )

    @classmethod
    def _unpacked(
        cls, layer: Layer, part: str, scale: str, start: int, stop: int | None
    ) -> Canonical:
        first, last = rows_of(layer, start, stop)
        stored = layer.array(part).reshape(layer.total_rows, -1)[first:last]
        exponents = layer.array(scale).reshape(layer.total_rows, -1)[first:last]
        table: Floats = e2m1() if layer.bits == 4 else float8(str(layer.parts[part].type.label))
        return Canonical(
            codes=unpack_pairs(stored) if layer.bits == 4 else stored,
            scales=np.asarray(e8m0()[exponents], np.float32),
            groups=in_order(layer),
            table=table,
        )

    @classmethod
    def layout(cls, layer: Layer) -> CodeLayout | None:
        """Return where the codes lie."""
        return e2m1_layout() if layer.bits == 4 else float8_layout(str(layer.codes.type.label))

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return rows `start` to `stop` (of all experts' rows in turn) in canonical form.

        Scales are powers of two, so that a weight is exact unless it leaves float32's range.
        """
        return cls._unpacked(layer, cls.codes_part(layer.parts), "weight_scale", start, stop)

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return the codes as stored, uint8.

        Raises:
            ValueError: The codes are not those of the whole layer.
        """
        held = cls.codes_part(layer.parts)
        return packed_like(layer, held, canonical.codes, nibbles=layer.bits == 4)


def _fit_rows(
    encoding: type[_MX_Layer], module: Module, claim: LayerClaim, held: str, bits: int
) -> Fit:
    """Fit codes `[..., N, K * bits / 8]` with `weight_scale` `[..., N, K / 32]`."""
    parts = Parts(encoding, module)
    codes, scale = parts.take(held), parts.take("weight_scale")
    if codes is None:
        return parts.fit(None)
    found = matrix_of(codes.shape)
    each = _GROUP * bits // 8
    if found is None or codes.shape[-1] % each:
        expected = f"[N, K * {bits} / 8] of whole groups of {each} bytes"
        parts.wrong(codes, held, expected, shape_text(codes))
        return parts.fit(None)
    wanted = (*codes.shape[:-1], codes.shape[-1] // each)
    if scale is not None and scale.shape != wanted:
        parts.wrong(scale, "weight_scale", f"{list(wanted)}", shape_text(scale))
    if parts.defects or scale is None:
        return parts.fit(None)
    matrix = (found[0], found[1], found[2] * 8 // bits)
    return parts.fit(encoding._built(parts, codes, scale, matrix, claim, bits))


def _without_codes(
    encoding: type[_MX_Layer], module: Module, claim: LayerClaim, scale: str = "weight_scale"
) -> Fit | None:
    """Say that scales have lost their codes, where the configuration tells whose they are."""
    stored = module.tensors.get(scale)
    if stored is None or stored.type.label not in E8M0_DTYPES or not encoding.claimed(claim):
        return None
    parts = Parts(encoding, module)
    parts.take(encoding.parts[0].name)
    return parts.fit(None)


class mxfp4_compressed(_MX_Layer, id="mxfp4.compressed"):
    """MXFP4 as compressed-tensors packs it: E2M1 floats, a power of two for 32 of a row.

    `weight_packed` is U8 `[N, K / 2]`, element 2i in the low half of byte i; `weight_scale` is U8
    or F8_E8M0 `[N, K / 32]`. Each may have experts as a first axis. A scale byte of 255 is NaN;
    compressed-tensors itself decodes it to infinity.
    """

    parts = (
        Part("weight_packed", Role.CODES, ("U8",)),
        Part("weight_scale", Role.SCALE, E8M0_DTYPES),
        Part("input_scale", Role.ACTIVATION, FLOATS, required=False),
    )
    methods = ("mxfp4-pack-quantized",)
    sources = ("compressed-tensors, compressors/mxfp4", _MX)
    formula = "e2m1[weight_packed] * 2^(weight_scale - 127)"

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how the tensors fit: codes in bytes, with no scale of the tensor."""
        codes = module.tensors.get("weight_packed")
        scale = module.tensors.get("weight_scale")
        if "weight_global_scale" in module.tensors or (
            codes is None and "weight" in module.tensors
        ):
            return None
        if codes is None:
            return _without_codes(cls, module, claim)
        if not cls.claimed(claim):
            narrow = scale is None or scale.type.label in E8M0_DTYPES
            if codes.type.label != "U8" or not narrow:
                return None
        return _fit_rows(cls, module, claim, "weight_packed", 4)


class mxfp8_compressed(_MX_Layer, id="mxfp8.compressed"):
    """MXFP8 as compressed-tensors packs it: 8-bit floats, a power of two for 32 of a row.

    `weight` is F8_E4M3 or F8_E5M2 `[N, K]`, `weight_scale` U8 or F8_E8M0 `[N, K / 32]`. Each may
    have experts as a first axis.
    """

    parts = (
        Part("weight", Role.CODES, ("F8_E4M3", "F8_E5M2")),
        Part("weight_scale", Role.SCALE, E8M0_DTYPES),
        Part("input_scale", Role.ACTIVATION, FLOATS, required=False),
    )
    methods = ("mxfp8-quantized", "MXFP8")
    sources = ("compressed-tensors, compressors/mxfp8", _MX)
    formula = "weight * 2^(weight_scale - 127)"

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how the tensors fit: 8-bit floats beside bytes of that very shape."""
        weight = module.tensors.get("weight")
        scale = module.tensors.get("weight_scale")
        if weight is None:
            return _without_codes(cls, module, claim)
        if weight.type.label not in cls.part("weight").dtypes:
            return None
        claimed = cls.claimed(claim) and claim.quantized is True
        if not claimed and (scale is None or not is_mx_scale(weight, scale)):
            return None
        return _fit_rows(cls, module, claim, "weight", 8)


class mxfp4_gpt_oss(_MX_Layer, id="mxfp4.gpt_oss"):
    """MXFP4 as gpt-oss packs it: blocks of 16 bytes, experts as a first axis.

    `<name>_blocks` is U8 `[experts, N, K / 32, 16]` (or without experts), element 2i in the low
    half of byte i; `<name>_scales` is U8 `[experts, N, K / 32]`. `<name>.blocks` and
    `<name>.scales` are the names in the original files. Rows of gate and up alternate there.
    """

    parts = (
        Part("_blocks", Role.CODES, ("U8",)),
        Part("_scales", Role.SCALE, E8M0_DTYPES),
        Part("blocks", Role.CODES, ("U8",), required=False, instead_of="_blocks"),
        Part("scales", Role.SCALE, E8M0_DTYPES, required=False, instead_of="_scales"),
    )
    methods = ("mxfp4",)
    sources = ("gpt-oss, gpt_oss/torch/weights.py", _MX)
    formula = "e2m1[blocks] * 2^(scales - 127)"

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how the tensors fit; scales without blocks are those of another family."""
        lead = "_" if "_blocks" in module.tensors else ""
        if f"{lead}blocks" not in module.tensors:
            return _without_codes(cls, module, claim, "_scales")
        parts = Parts(cls, module)
        codes, scale = parts.take(f"{lead}blocks"), parts.take(f"{lead}scales")
        if codes is None:
            return parts.fit(None)
        shape = codes.shape
        if len(shape) not in (3, 4) or min(shape) < 1 or shape[-1] != _GROUP // 2:
            parts.wrong(codes, f"{lead}blocks", "[experts, N, K / 32, 16]", shape_text(codes))
            return parts.fit(None)
        if scale is not None and scale.shape != shape[:-1]:
            parts.wrong(scale, f"{lead}scales", f"{list(shape[:-1])}", shape_text(scale))
        if parts.defects or scale is None:
            return parts.fit(None)
        matrix = (shape[0] if len(shape) == 4 else None, shape[-3], shape[-2] * _GROUP)
        return parts.fit(cls._built(parts, codes, scale, matrix, claim, bits=4))

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return rows `start` to `stop` (of all experts' rows in turn) in canonical form."""
        held = cls.codes_part(layer.parts)
        return cls._unpacked(layer, held, held.replace("blocks", "scales"), start, stop)

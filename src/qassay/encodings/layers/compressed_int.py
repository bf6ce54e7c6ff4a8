"""compressed-tensors with integer codes: packed into words, or as plain int8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.encodings.layers.base import Fit, Layer, LayerEncoding, Module, Part, Role
from qassay.encodings.layers.canonical import Canonical, Floats
from qassay.encodings.layers.claims import LayerClaim
from qassay.encodings.layers.fitting import (
    FLOATS,
    Fitting,
    by_index,
    floats_at,
    in_order,
    span,
    with_nowhere,
)
from qassay.encodings.layers.layout import CodeLayout, Form, Zeros
from qassay.encodings.layers.words import pack, unpack, words_for

_ACTIVATIONS = (
    Part("input_scale", Role.ACTIVATION, FLOATS, required=False),
    Part("input_zero_point", Role.ACTIVATION, ("I8", "U8", "I32", *FLOATS), required=False),
    Part("input_global_scale", Role.ACTIVATION, FLOATS, required=False),
    Part("output_scale", Role.ACTIVATION, FLOATS, required=False),
    Part("output_zero_point", Role.ACTIVATION, ("I8", "U8", "I32", *FLOATS), required=False),
)
_INDEX = Part("weight_g_idx", Role.INDEX, ("I32", "I64"), required=False)
_FORMULA = "(q[n, k] - weight_zero_point[n, g]) * weight_scale[n, g]"
_STRATEGIES = "compressed-tensors quantization/lifecycle/forward.py (dequantize; -1 in g_idx)"


@dataclass(frozen=True, slots=True)
class Grid:
    """How scales are dealt out: `scales [R, G]`, each for `group_rows` rows, `group` columns."""

    rows: int
    groups: int
    group_rows: int
    group: int


def grid(shape: tuple[int, ...], rows: int, columns: int, claim: LayerClaim) -> Grid | None:
    """Return how scales of a shape are dealt out to `[rows, columns]` weights, None: not at all.

    `[]`, `[1]` and `[1, 1]` are one for the tensor, `[N]` and `[N, 1]` one a row, `[N, G]` groups,
    `[N / b, K / b]` square blocks. Blocks of other proportions, and a scale a weight, are
    believed only when the configuration says them: transposed scales have such shapes, too.
    """
    pair = (1, 1) if shape in ((), (1,)) else (shape[0], 1) if len(shape) == 1 else shape
    if len(pair) != 2 or 0 in pair:
        return None
    height, width = claim.block or (None, claim.group_size)
    group = span(columns, pair[1], width)
    if group is None:
        return None
    if pair[0] == rows:
        believed = group > 1 or columns == 1 or claim.group_size == 1
        return Grid(rows, pair[1], 1, group) if believed else None
    tall = span(rows, pair[0], height)
    if tall is None:
        return None
    whole = pair == (1, 1)
    if whole or tall == group > 1 or (claim.block is not None and (tall, group) == claim.block):
        return Grid(pair[0], pair[1], tall, group)
    return None


def _scales(fitting: Fitting, rows: int, columns: int) -> Grid | None:
    """Return how `weight_scale` is dealt out; what does not fit is noted."""
    shapes = ((rows, "groups"), (rows, 1), (1,))
    if "weight_scale" not in fitting.module.tensors:
        fitting.require("weight_scale", *shapes)
        return None
    if not fitting.require("weight_scale"):
        return None
    found = grid(fitting.module.shape("weight_scale"), rows, columns, fitting.claim)
    if found is None:
        fitting.misshaped("weight_scale", *shapes)
    return found


def _index(fitting: Fitting, columns: int) -> None:
    """Note what is wrong with `weight_g_idx`, which is there if groups follow an order."""
    if fitting.claim.act_order or "weight_g_idx" in fitting.module.tensors:
        fitting.require("weight_g_idx", (columns,))


def _strange(module: Module, encoding: type[LayerEncoding]) -> str:
    """Return the name of a tensor that might change what the codes mean, "" without one."""
    known = {part.name for part in encoding.parts} | {"weight"}
    return next((n for n in module.tensors if n.startswith("weight_") and n not in known), "")


def _whole(module: Module, encoding: type[LayerEncoding]) -> bool:
    """Tell whether a module has every part that is required; else that is what is wrong first."""
    return all(part.name in module.tensors for part in encoding.parts if part.required)


def _cut(layer: Layer, part: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Return the rows of an `[R, G]` part that rows `start` to `stop` take."""
    stored = layer.array(part)
    return stored.reshape(-1, layer.groups)[start // layer.group_rows : _end(layer, stop)]


def _end(layer: Layer, stop: int) -> int:
    return -(-stop // layer.group_rows)


def _scales_of(layer: Layer, start: int, stop: int) -> Floats:
    shape = layer.parts["weight_scale"].shape
    cut = slice(start // layer.group_rows, _end(layer, stop))
    at = cut if len(shape) > 0 and shape != (1,) else ...
    return floats_at(layer, "weight_scale", at).reshape(-1, layer.groups)


def _row_groups(layer: Layer, start: int, stop: int) -> npt.NDArray[np.int32] | None:
    if layer.group_rows == 1:
        return None
    rows = np.arange(start, stop, dtype=np.int64) // layer.group_rows
    return (rows - start // layer.group_rows).astype(np.int32)


def _canonical(
    layer: Layer,
    codes: npt.NDArray[Any],
    zeros: npt.NDArray[np.int16] | None,
    start: int,
    stop: int,
) -> Canonical:
    scales, row_groups = _scales_of(layer, start, stop), _row_groups(layer, start, stop)
    groups = in_order(layer)
    if "weight_g_idx" in layer.parts:
        index = layer.array("weight_g_idx")
        if not (index == -1).any():  # -1: the index was never set, columns are in order
            groups, outside = by_index(index, scales.shape[1])
            if outside:
                scales, zeros = with_nowhere(scales, zeros)
    return Canonical(codes, scales, groups, zeros, row_groups=row_groups)


def in_sequence(layer: Layer) -> bool:
    """Tell whether the groups of a layer are runs of columns, as far as headers tell."""
    return "weight_g_idx" not in layer.parts


class compressed_pack(LayerEncoding, id="compressed.pack"):
    """compressed-tensors `pack-quantized`: codes of 1 to 8 bits in words along the input axis.

    ::

        weight_packed     [N, ceil(K * bits / 32)]  code k in bits k * bits and up
        weight_scale      [N, G], [N, 1] or [1]
        weight_shape      [2]                       N, K: tells how full the last word is
        weight_zero_point [ceil(N * bits / 32), G]  along the output axis; absent if symmetric
        weight_g_idx      [K]                       the group of each input; -1 in it: in order

    Stored codes and zero points are the signed ones plus 2^(bits - 1). Here they stay as stored,
    so that a symmetric weight has zero points of 2^(bits - 1). Old versions keep int8 zero
    points `[N, G]`, which are signed.

    Not read: 3, 5, 6 and 7 bits of versions that left the rest of each word empty.
    """

    parts = (
        Part("weight_packed", Role.CODES, ("I32",)),
        Part("weight_scale", Role.SCALE, FLOATS),
        Part("weight_shape", Role.SHAPE, ("I64", "I32")),
        Part("weight_zero_point", Role.ZERO, ("I32", "I8"), required=False),
        _INDEX,
        *_ACTIVATIONS,
    )
    unset_index = -1
    methods = ("pack-quantized", "auto_round:llm_compressor")
    formula = _FORMULA
    sources = (
        "compressed-tensors compressors/pack_quantized (0.19: dense; before: 32 // bits a word)",
        _STRATEGIES,
    )

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how a module's tensors fit; the two numbers of `weight_shape` are read."""
        stored = module.tensors.get("weight_packed")
        if stored is None or stored.type.label != "I32" or len(stored.shape) != 2:
            return None
        if not cls.claimed(claim) and not {"weight_scale", "weight_shape"} & set(module.tensors):
            return None
        fitting = Fitting(cls, module, claim, "weight_packed")
        rows, words = stored.shape
        if not rows or not words:
            return fitting.unread("it holds no weights")
        if (strange := _strange(module, cls)) and _whole(module, cls):
            return fitting.unread(f"what {strange} does to it is not known")
        fitting.require("weight_packed")
        if not fitting.require("weight_shape", (2,)):
            if "weight_scale" not in module.tensors:
                fitting.require("weight_scale", (rows, "groups"), (rows, 1), (1,))
            return fitting.result()
        found, columns = _two(module)
        bits, reason = packed_bits(columns, words, claim.bits) if found == rows else (None, "")
        if reason:
            return fitting.unread(reason)
        if bits is None:
            says, holds = f"[{found}, {columns}]", f"[{rows}, {words}]"
            message = f"weight_shape says {says}, and {fitting.name} is {holds}"
            fitting.fault("weight_shape", message, f"[{rows}, K]", says)
            return fitting.result()
        dealt = _scales(fitting, rows, columns)
        if dealt is None:
            return fitting.result()
        cls._zero_points(fitting, dealt, bits)
        _index(fitting, columns)
        if not fitting.sound:
            return fitting.result()
        for part in _ACTIVATIONS:
            fitting.optional(part.name)
        return fitting.layer(
            bits,
            rows,
            columns,
            dealt.group,
            group_rows=dealt.group_rows,
            symmetric="weight_zero_point" not in module.tensors,
        )

    @classmethod
    def _zero_points(cls, fitting: Fitting, dealt: Grid, bits: int) -> None:
        stored = fitting.module.tensors.get("weight_zero_point")
        if stored is None:
            return
        if stored.type.label == "I8":
            fitting.optional("weight_zero_point", fitting.module.shape("weight_scale"))
        else:
            fitting.optional("weight_zero_point", (words_for(dealt.rows, bits), dealt.groups))

    @classmethod
    def layout(cls, layer: Layer) -> CodeLayout | None:
        """Return where the codes lie, if they are 4 bits wide and fill their words in order."""
        if layer.bits != 4 or layer.columns % 8 or layer.group % 2 or not in_sequence(layer):
            return None
        stored = layer.parts.get("weight_zero_point")
        if stored is None:
            return CodeLayout(Form.NIBBLES, zero=8)
        if stored.type.label == "I8":
            zeros = Zeros("weight_zero_point", bits=8, offset=8)
        else:
            zeros = Zeros("weight_zero_point", by_group=False)
        return CodeLayout(Form.NIBBLES, zeros=zeros)

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return rows `start` to `stop`.

        Columns whose `weight_g_idx` names no group get NaN weights, as with GPTQ.
        """
        stop = layer.rows if stop is None else stop
        codes = unpack(layer.array("weight_packed")[start:stop], layer.bits, layer.columns)
        middle = 1 << (layer.bits - 1)
        first, end = start // layer.group_rows, _end(layer, stop)
        stored = layer.parts.get("weight_zero_point")
        if stored is None:
            zeros = np.full((end - first, layer.groups), middle, np.int16)
        elif stored.type.label == "I8":
            signed = layer.array("weight_zero_point").reshape(-1, layer.groups)[first:end]
            zeros = signed.astype(np.int16) + np.int16(middle)
        else:
            packed = layer.array("weight_zero_point")
            zeros = unpack(packed, layer.bits, end, first, axis=0).T.astype(np.int16)
        return _canonical(layer, codes, zeros, start, stop)

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return `weight_packed`, and `weight_zero_point` where there is one."""
        packed: dict[str, npt.NDArray[Any]] = {"weight_packed": pack(canonical.codes, layer.bits)}
        stored = layer.parts.get("weight_zero_point")
        if stored is not None and canonical.zeros is not None:
            zeros = canonical.zeros[:, : layer.groups]
            if stored.type.label == "I8":
                signed = (zeros - (1 << (layer.bits - 1))).astype(np.int8)
                packed["weight_zero_point"] = signed.reshape(stored.shape)
            else:
                packed["weight_zero_point"] = pack(zeros.T, layer.bits, axis=0)
        return packed


def _two(module: Module) -> tuple[int, int]:
    """Return the two numbers of `weight_shape`, which is known to be readable."""
    stored = module.tensors["weight_shape"]
    dtype = "<i8" if stored.type.label == "I64" else "<i4"
    rows, columns = stored.raw().view(dtype).tolist()
    return rows, columns


def packed_bits(columns: int, words: int, claimed: int | None) -> tuple[int | None, str]:
    """Return the width of a code if `columns` of them take `words` words, or why it is not told.

    ::

        bits                         3  5  6  7
        dense: codes in 32 words  341  204  170  146
        padded: codes in a word     10   6   5   4   of versions before 0.19

    Both None and "": no width, in either way of packing.
    """
    if columns < 1:
        return None, ""
    dense = [bits for bits in range(1, 9) if words_for(columns, bits) == words]
    padded = [bits for bits in (3, 5, 6, 7) if -(-columns // (32 // bits)) == words]
    if claimed in padded and columns > 32 // claimed:
        if claimed in dense:
            return None, f"its {claimed}-bit codes may be packed densely, or word by word"
        return None, f"its {claimed}-bit codes are packed word by word, an older layout"
    if claimed in dense:
        return claimed, ""
    if len(dense) > 1:
        return None, "its shapes leave the width of a code open, and no configuration says"
    if dense:
        return dense[0], ""
    if padded:
        return None, f"its codes may be of {padded[0]} bits, packed word by word, an older layout"
    return None, ""


class compressed_int(LayerEncoding, id="compressed.int"):
    """compressed-tensors `int-quantized`, `naive-quantized`: int8 codes, not packed.

    ::

        weight            [N, K]    int8, the signed code; narrower codes take a byte, too
        weight_scale      [1] or [], [N, 1] or [N], [N, G], [N / b, K / b]
        weight_zero_point           int8, of the same shape; absent if symmetric
        weight_g_idx      [K]       the group of each input; -1 in it: in order

    The width of a code is 8 unless the configuration says less.
    """

    parts = (
        Part("weight", Role.CODES, ("I8",)),
        Part("weight_scale", Role.SCALE, FLOATS),
        Part("weight_zero_point", Role.ZERO, ("I8",), required=False),
        _INDEX,
        *_ACTIVATIONS,
    )
    unset_index = -1
    methods = ("int-quantized", "naive-quantized")
    formula = _FORMULA
    sources = ("compressed-tensors compressors/naive_quantized", _STRATEGIES)

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how a module's tensors fit."""
        stored = module.tensors.get("weight")
        if stored is None or stored.type.label != "I8":
            return None
        if "weight_scale" not in module.tensors and not (
            cls.claimed(claim) and claim.quantized is not False
        ):
            return None
        fitting = Fitting(cls, module, claim, "weight")
        if len(stored.shape) != 2:
            return fitting.unread(f"its weight has {len(stored.shape)} axes, not two")
        rows, columns = stored.shape
        if not rows or not columns:
            return fitting.unread("it holds no weights")
        if (strange := _strange(module, cls)) and _whole(module, cls):
            return fitting.unread(f"what {strange} does to it is not known")
        fitting.require("weight")
        dealt = _scales(fitting, rows, columns)
        if dealt is None:
            return fitting.result()
        fitting.optional("weight_zero_point", module.shape("weight_scale"))
        _index(fitting, columns)
        if not fitting.sound:
            return fitting.result()
        for part in _ACTIVATIONS:
            fitting.optional(part.name)
        narrow = cls.claimed(claim) and claim.bits in range(1, 8)
        return fitting.layer(
            claim.bits if narrow and claim.bits else 8,
            rows,
            columns,
            dealt.group,
            group_rows=dealt.group_rows,
            symmetric=None if "weight_zero_point" in module.tensors else True,
        )

    @classmethod
    def layout(cls, layer: Layer) -> CodeLayout | None:
        """Return where the codes lie, if groups are in order."""
        if not in_sequence(layer):
            return None
        zeros = None
        if "weight_zero_point" in layer.parts:
            zeros = Zeros("weight_zero_point", bits=8)
        return CodeLayout(Form.BYTES, zeros=zeros)

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return rows `start` to `stop`; codes are int8."""
        stop = layer.rows if stop is None else stop
        zeros = None
        if "weight_zero_point" in layer.parts:
            zeros = _cut(layer, "weight_zero_point", start, stop).astype(np.int16)
        return _canonical(layer, layer.array("weight")[start:stop], zeros, start, stop)

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return `weight`, and `weight_zero_point` where there is one."""
        packed: dict[str, npt.NDArray[Any]] = {"weight": canonical.codes.astype(np.int8)}
        stored = layer.parts.get("weight_zero_point")
        if stored is not None and canonical.zeros is not None:
            zeros = canonical.zeros[:, : layer.groups]
            packed["weight_zero_point"] = zeros.astype(np.int8).reshape(stored.shape)
        return packed

"""Weights kept in several tensors, made from a recipe: sound ones, and ones off in a known way.

::

    {layer: gptq, name: model.layers.0.mlp.up_proj, shape: [64, 128], group: 32, seed: 1,
     without: [g_idx], parts: {scales: 0.5}}

`layer` is `gptq`, `awq`, `compressed.pack`, `compressed.int`, `fp8`, `nvfp4.compressed`,
`nvfp4.modelopt`, `mxfp4.compressed`. Weights are normal numbers with a deviation of 0.02.
Integer codes span the range of their group, or are `symmetric`. Further keys: `bits`; `mean`
(added to the weights), `positive` (the absolute values of them);
`zero_offset` (GPTQ: 1 is version 1, 0 version 2), `shift` (added to the zero points as stored),
`order` (GPTQ: `true` deals columns out to groups by chance), `codes` and `zeros` (AWQ: `natural`
instead of its own order); of FP8 `block` and `scale_name`; `dtype` of scales. `with` adds
parts (`{input_scale: 0.5}`), `parts` replaces the values of some, `without` leaves some out,
`rename` gives some another name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.encodings.base import PlainEncoding
from qassay.encodings.layers.narrow import e2m1, float8, pack_pairs
from qassay.encodings.layers.words import pack, pack_awq
from qassay.encodings.registry import by_id
from qassay.testing.content import encode

Recipe = Mapping[str, Any]
Numbers = npt.NDArray[np.float64]
Parts = dict[str, tuple[str, npt.NDArray[Any]]]
"""By part: the plain encoding, and values (numbers, or bytes where uint8)."""

_DEVIATION = 0.02


def layer_tensors(recipe: Recipe) -> dict[str, tuple[str, tuple[int, ...], npt.NDArray[np.uint8]]]:
    """Return by tensor name the plain encoding, shape and bytes of what a recipe describes."""
    rows, columns = recipe["shape"]
    rng = np.random.default_rng(recipe.get("seed", 0))
    weights = rng.standard_normal((rows, columns)) * _DEVIATION + recipe.get("mean", 0.0)
    weights = np.abs(weights) if recipe.get("positive") else weights
    parts = _FAMILIES[recipe["layer"]](recipe, weights)
    for name, value in recipe.get("with", {}).items():
        parts[name] = ("f32", np.atleast_1d(np.asarray(value, np.float64)))
    for name, value in recipe.get("parts", {}).items():
        encoding, values = parts[name]
        parts[name] = (encoding, np.broadcast_to(np.asarray(value), values.shape))
    names = recipe.get("rename", {})
    built = {}
    for name, (encoding, values) in parts.items():
        if name in recipe.get("without", ()):
            continue
        part = names.get(name, name)
        raw = values if values.dtype == np.uint8 else _encoded(encoding, values)
        flat = np.ascontiguousarray(raw).reshape(-1).view(np.uint8).copy()
        joint = "" if part.startswith("_") else "."
        built[f"{recipe['name']}{joint}{part}"] = (encoding, values.shape, flat)
    return built


def _encoded(encoding: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    known = by_id(encoding)
    assert issubclass(known, PlainEncoding)  # noqa: S101 - the table below names no other
    if known.kind == "integer":
        return values.astype(known.dtype)
    return encode(known, values.reshape(-1))


def _integers(recipe: Recipe, weights: Numbers) -> tuple[npt.NDArray[Any], ...]:
    """Return codes `[N, K]`, zero points and scales `[N, G]`, and the group of each column."""
    rows, columns = weights.shape
    bits, group = recipe.get("bits", 4), recipe.get("group", columns)
    top = (1 << bits) - 1
    index = np.arange(columns) // group
    if recipe.get("order"):
        index = np.random.default_rng(recipe.get("seed", 0) + 1).permutation(index)
    order = np.argsort(index, kind="stable")
    grouped = weights[:, order].reshape(rows, -1, group)
    if recipe.get("symmetric"):
        scales = np.abs(grouped).max(axis=2) / (top / 2)
        zeros = np.full(scales.shape, (top + 1) // 2)
    else:
        low, high = grouped.min(axis=2).clip(max=0), grouped.max(axis=2).clip(min=0)
        scales = (high - low) / top
        zeros = np.rint(-low / np.where(scales > 0, scales, 1.0)).clip(0, top)
    scales = np.where(scales > 0, scales, 1.0)  # a group of zeros
    codes = np.empty_like(weights)
    fitted = np.rint(grouped / scales[..., None]) + zeros[..., None]
    codes[:, order] = fitted.clip(0, top).reshape(rows, columns)
    return codes.astype(np.int64), zeros.astype(np.int64), scales, index


def _gptq(recipe: Recipe, weights: Numbers) -> Parts:
    codes, zeros, scales, index = _integers(recipe, weights)
    bits = recipe.get("bits", 4)
    stored = (zeros - recipe.get("zero_offset", 1) + recipe.get("shift", 0)) & ((1 << bits) - 1)
    return {
        "qweight": ("i32", pack(codes, bits, axis=0)),
        "qzeros": ("i32", pack(stored.T, bits)),
        "scales": (recipe.get("dtype", "f16"), scales.T),
        "g_idx": ("i32", index),
    }


def _awq(recipe: Recipe, weights: Numbers) -> Parts:
    codes, zeros, scales, _ = _integers(recipe, weights)
    zeros = (zeros + recipe.get("shift", 0)) & 15

    def packed(values: npt.NDArray[Any], order: str) -> npt.NDArray[Any]:
        return pack(values.T, 4) if order == "natural" else pack_awq(values)

    return {
        "qweight": ("i32", packed(codes, recipe.get("codes", "awq"))),
        "qzeros": ("i32", packed(zeros, recipe.get("zeros", "awq"))),
        "scales": (recipe.get("dtype", "f16"), scales.T),
    }


def _pack(recipe: Recipe, weights: Numbers) -> Parts:
    codes, zeros, scales, index = _integers(recipe, weights)
    bits = recipe.get("bits", 4)
    parts: Parts = {
        "weight_packed": ("i32", pack(codes, bits)),
        "weight_scale": (recipe.get("dtype", "bf16"), scales),
        "weight_shape": ("i64", np.array(codes.shape)),
    }
    if not recipe.get("symmetric"):
        shifted = (zeros + recipe.get("shift", 0)) & ((1 << bits) - 1)
        parts["weight_zero_point"] = ("i32", pack(shifted.T, bits, axis=0))
    if recipe.get("order"):
        parts["weight_g_idx"] = ("i32", index)
    return parts


def _int(recipe: Recipe, weights: Numbers) -> Parts:
    bits = recipe.get("bits", 8)
    codes, zeros, scales, _ = _integers({**recipe, "bits": bits}, weights)
    half = 1 << (bits - 1)
    parts: Parts = {
        "weight": ("i8", codes - half),
        "weight_scale": (recipe.get("dtype", "bf16"), scales),
    }
    if not recipe.get("symmetric"):
        parts["weight_zero_point"] = ("i8", zeros - half + recipe.get("shift", 0))
    return parts


def _nearest(table: npt.NDArray[np.float32], values: Numbers) -> npt.NDArray[np.uint8]:
    """Return the codes of the finite numbers of a table that are nearest to values."""
    order = np.argsort(np.where(np.isfinite(table), table, np.inf), kind="stable")
    order = order[: int(np.isfinite(table).sum())]
    known = table[order].astype(np.float64)
    above = np.searchsorted(known, values).clip(1, known.size - 1)
    lower = values - known[above - 1] < known[above] - values
    return np.asarray(order[np.where(lower, above - 1, above)], np.uint8)


def _fp8(recipe: Recipe, weights: Numbers) -> Parts:
    rows, columns = weights.shape
    tall, wide = recipe.get("block", (rows, columns))
    down, along = -(-rows // tall), -(-columns // wide)
    padded = np.zeros((down * tall, along * wide))
    padded[:rows, :columns] = np.abs(weights)
    scales = padded.reshape(down, tall, along, wide).max(axis=(1, 3)) / 448
    if recipe.get("powers"):
        scales = np.exp2(np.ceil(np.log2(scales)))
    spread = scales.repeat(tall, axis=0).repeat(wide, axis=1)[:rows, :columns]
    stored = scales.reshape(1) if (down, along) == (1, 1) else scales
    return {
        "weight": ("f8_e4m3", _nearest(float8("F8_E4M3"), weights / spread)),
        recipe.get("scale_name", "weight_scale"): (recipe.get("dtype", "f32"), stored),
    }


def _nvfp4(recipe: Recipe, weights: Numbers) -> Parts:
    rows, columns = weights.shape
    overall = recipe.get("overall", float(np.abs(weights).max()) / (448 * 6))
    grouped = weights.reshape(rows, columns // 16, 16)
    table = float8("F8_E4M3")
    scales = _nearest(table, np.abs(grouped).max(axis=2) / 6 / overall)
    real = table[scales].astype(np.float64) * overall
    codes = pack_pairs(_nearest(e2m1(), grouped / real[..., None]).reshape(rows, columns))
    divides = recipe["layer"] == "nvfp4.compressed"
    held, name = (
        ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
    )
    return {
        held: ("u8", codes),
        "weight_scale": ("f8_e4m3", scales),
        name: ("f32", np.array([1 / overall if divides else overall])),
    }


def _mxfp4(recipe: Recipe, weights: Numbers) -> Parts:
    del recipe
    rows, columns = weights.shape
    grouped = weights.reshape(rows, columns // 32, 32)
    exponent = np.floor(np.log2(np.abs(grouped).max(axis=2))) - 2
    scaled = grouped / np.exp2(exponent)[..., None]
    return {
        "weight_packed": ("u8", pack_pairs(_nearest(e2m1(), scaled).reshape(rows, columns))),
        "weight_scale": ("u8", (exponent + 127).astype(np.uint8)),
    }


_FAMILIES: dict[str, Callable[[Recipe, Numbers], Parts]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed.pack": _pack,
    "compressed.int": _int,
    "fp8": _fp8,
    "nvfp4.compressed": _nvfp4,
    "nvfp4.modelopt": _nvfp4,
    "mxfp4.compressed": _mxfp4,
}

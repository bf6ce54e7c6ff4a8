"""Changes to a checkpoint, each with what comes of it in every family.

`VERDICTS` lists for every mutation and every folder: the codes that name it; that the label alone
was changed; that the weights are the same, and nothing is said; that the file by itself cannot
tell, and why, and what `compare` with the original says; or that there is nothing of the kind to
change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from mutated import CHECKPOINTS, DOWN, Checkpoint, Q, decoded, reordered, shifted, swapped

FOLDERS = {
    "gptq3": "autoround-w3a16",
    "gptq4": "autoround-w4a16",
    "gptq_asym": "autoround-w4a16-asym-gptq",
    "gptq_desc": "gptqmodel-gptq-w4g128-desc",
    "awq": "autoround-w4a16-awq",
    "pack": "llmcompressor-w4a16",
    "pack_asym": "llmcompressor-w4a16_asym",
    "fp8_auto": "autoround-fp8_block",
    "fp8": "llmcompressor-fp8_block",
    "nvfp4": "llmcompressor-nvfp4a16",
    "mxfp4": "llmcompressor-mxfp4a16",
}
GPTQ = ("gptq3", "gptq4", "gptq_asym", "gptq_desc")
PACK = ("pack", "pack_asym")
FP8 = ("fp8_auto", "fp8")
FP4 = ("nvfp4", "mxfp4")
INTEGERS = (*GPTQ, "awq", *PACK)
ALL = tuple(FOLDERS)


@dataclass(frozen=True)
class Found:
    """The weights changed (or can no longer be decoded), and one of these codes says so."""

    codes: tuple[str, ...]


@dataclass(frozen=True)
class Label:
    """The tensors are the same, or mean the same, and one of these codes names the label."""

    codes: tuple[str, ...]


@dataclass(frozen=True)
class Same:
    """The weights are the same, and nothing is said."""


@dataclass(frozen=True)
class Undecidable:
    """Nothing in the file speaks against it; `compare` reports one of these codes."""

    reason: str
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Absent:
    """There is nothing of the kind in this family."""

    reason: str


Verdict = Found | Label | Same | Undecidable | Absent
VERDICTS: dict[str, tuple[Callable[[Checkpoint], None], dict[str, Verdict]]] = {}


def mutation(*rows: tuple[tuple[str, ...], Verdict]) -> Callable[..., Callable[..., None]]:
    """Declare a mutation with the verdict for each folder; earlier rows count."""

    def declare(function: Callable[[Checkpoint], None]) -> Callable[[Checkpoint], None]:
        verdicts: dict[str, Verdict] = {}
        for folders, verdict in rows:
            for folder in folders:
                verdicts.setdefault(folder, verdict)
        VERDICTS[function.__name__] = (function, verdicts)
        return function

    return declare


# What the configuration says.


def _sizes(model: Checkpoint, change: Callable[[int], int]) -> None:
    def changed(value: int | list[int]) -> int | list[int]:
        return [change(each) for each in value] if isinstance(value, list) else change(value)

    for config in model.configs():
        for key in ("group_size", "weight_block_size"):
            if config.get(key):
                config[key] = changed(config[key])
        for group in config.get("config_groups", {}).values():
            for key in ("group_size", "block_structure"):
                if group["weights"].get(key):
                    group["weights"][key] = changed(group["weights"][key])


@mutation((ALL, Label(("Q101",))))
def group_size_halved(model: Checkpoint) -> None:
    _sizes(model, lambda size: size // 2)


@mutation((ALL, Label(("Q101",))))
def group_size_doubled(model: Checkpoint) -> None:
    _sizes(model, lambda size: size * 2)


def _label_v2(model: Checkpoint) -> None:
    for config in model.configs():
        if "packing_format" in config:
            config["packing_format"] = "auto_round:gptqmodel"
        else:
            config.pop("format", None)
            config["checkpoint_format"] = "gptq_v2"


def _store_v2(model: Checkpoint) -> None:
    bits = next(model.configs())["bits"]
    for name, (_, words) in list(model.tensors.items()):
        if name.endswith(".qzeros"):
            model.tensors[name] = ("I32", shifted(words, bits, 1, 1))


NO_VERSIONS = Absent("only GPTQ has two versions of zero points")


@mutation((GPTQ, Found(("Q102",))), (ALL, NO_VERSIONS))
def version_1_labelled_2(model: Checkpoint) -> None:
    _label_v2(model)


@mutation((GPTQ, Found(("Q102",))), (ALL, NO_VERSIONS))
def version_2_labelled_1(model: Checkpoint) -> None:
    _store_v2(model)


@mutation((GPTQ, Same()), (ALL, NO_VERSIONS))
def version_2_labelled_2(model: Checkpoint) -> None:
    _store_v2(model)
    _label_v2(model)


@mutation((ALL, Label(("Q108",))))
def quantized_though_ignored(model: Checkpoint) -> None:
    for config in model.configs():
        if "config_groups" in config:
            config["ignore"].append(DOWN)
        elif config["quant_method"] == "awq":
            config["modules_to_not_convert"] = ["down_proj"]
        elif "packing_format" in config:
            config["extra_config"] = {DOWN: {"bits": 16, "data_type": "float"}}
        elif "quant_method" in config or "method" in config:
            config["dynamic"] = {"-:.*down_proj": {}}


@mutation((ALL, Label(("Q106",))))
def one_layer_left_float(model: Checkpoint) -> None:
    original = decoded(CHECKPOINTS / model.name)[DOWN]
    for name in [name for name in model.tensors if name.startswith(f"{DOWN}.")]:
        del model.tensors[name]
    model.tensors[f"{DOWN}.weight"] = ("F32", original)


# Zero points.

NO_ZEROS = Absent("no zero points are stored")
ZEROS = (*GPTQ, "awq", "pack_asym")


def _shift_zeros(model: Checkpoint, by: int) -> None:
    part = model.zeros()
    bits = 3 if model.name == FOLDERS["gptq3"] else 4
    axis = 0 if part == "weight_zero_point" else 1
    model.put(part, shifted(model.array(part), bits, by, axis))


@mutation((ZEROS, Found(("Q102",))), (ALL, NO_ZEROS))
def zero_points_one_higher(model: Checkpoint) -> None:
    _shift_zeros(model, 1)


@mutation((ZEROS, Found(("Q102",))), (ALL, NO_ZEROS))
def zero_points_one_lower(model: Checkpoint) -> None:
    _shift_zeros(model, -1)


# Order of codes and zero points.

IN_A_GROUP = Undecidable(
    "columns 2i and 2i + 1 change places inside their group: codes, zero points and scales fit"
    " each other as before",
    ("Q606",),
)


@mutation(
    (("awq",), Found(("Q107",))),
    (FP8, Found(("Q303",))),
    (
        ("gptq_desc",),
        Undecidable("any codes of a symmetric layer are possible in any group", ("Q606",)),
    ),
    (("gptq3",), Undecidable("any bits are codes of 3 bits", ("Q611",))),
    (ALL, IN_A_GROUP),
)
def halves_of_codes_swapped(model: Checkpoint) -> None:
    model.put(model.codes(), swapped(model.array(model.codes())))


@mutation(
    (("gptq4", "gptq_desc"), Same()),
    (("gptq3",), Found(("Q102",))),
    (("gptq_asym", "awq", "pack_asym"), Found(("Q107",))),
    (ALL, NO_ZEROS),
)
def halves_of_zero_points_swapped(model: Checkpoint) -> None:
    model.put(model.zeros(), swapped(model.array(model.zeros())))


NOT_AWQ = Absent("only AWQ has an order of its own")


@mutation((("awq",), Found(("Q107",))), (ALL, NOT_AWQ))
def order_dropped_in_codes(model: Checkpoint) -> None:
    model.put("qweight", reordered(model.array("qweight")))


@mutation((("awq",), Found(("Q107",))), (ALL, NOT_AWQ))
def order_dropped_in_zero_points(model: Checkpoint) -> None:
    model.put("qzeros", reordered(model.array("qzeros")))


@mutation(
    (
        ("awq",),
        Undecidable(
            "codes and zero points fit each other; scales tell nothing of which codes are theirs",
            ("Q606",),
        ),
    ),
    (ALL, NOT_AWQ),
)
def order_dropped_in_both(model: Checkpoint) -> None:
    order_dropped_in_codes(model)
    order_dropped_in_zero_points(model)


# Scales.


@mutation((ALL, Undecidable("every scale is a possible one of any group", ("Q604",))))
def scales_rolled_by_one_group(model: Checkpoint) -> None:
    part = model.scales()
    model.put(part, np.roll(model.array(part), 1, axis=0 if part == "scales" else 1))


@mutation((FP8, Found(("Q101", "Q103"))), (ALL, Found(("Q103",))))
def scales_transposed(model: Checkpoint) -> None:
    model.put(model.scales(), model.array(model.scales()).T)


_BITS = {
    ("F16", "nan"): 0x7E00, ("F16", "inf"): 0x7C00, ("BF16", "nan"): 0x7FC0,
    ("BF16", "inf"): 0x7F80, ("F8_E4M3", "nan"): 0x7F, ("U8", "nan"): 0xFF,
    ("F32", "nan"): 0x7FC00000, ("F32", "inf"): 0x7F800000,
}  # fmt: skip


def _one_scale(model: Checkpoint, kind: str) -> None:
    name = f"{DOWN}.{model.scales()}"
    dtype, array = model.tensors[name]
    bits = np.ascontiguousarray(array).view(f"<u{array.itemsize}").copy()
    at = (1, 2)
    if kind == "negative":
        bits[at] |= 1 << (8 * array.itemsize - 1)
    else:
        bits[at] = 0 if kind == "zero" else _BITS[dtype, kind]
    model.tensors[name] = (dtype, bits.view(array.dtype))


@mutation((ALL, Found(("Q201",))))
def one_scale_nan(model: Checkpoint) -> None:
    _one_scale(model, "nan")


@mutation((FP4, Absent("E4M3 and E8M0 have no infinity")), (ALL, Found(("Q201",))))
def one_scale_infinite(model: Checkpoint) -> None:
    _one_scale(model, "inf")


@mutation((("mxfp4",), Absent("E8M0 has no zero; byte 0 is 2^-127")), (ALL, Found(("Q202",))))
def one_scale_zero(model: Checkpoint) -> None:
    _one_scale(model, "zero")


@mutation(
    (("mxfp4",), Absent("E8M0 has no sign")),
    (
        ("gptq3", "gptq4"),
        Undecidable(
            "a scale of symmetric AutoRound has the sign of the largest weight: half are negative",
            ("Q611",),
        ),
    ),
    (ALL, Found(("Q205",))),
)
def one_scale_negative(model: Checkpoint) -> None:
    _one_scale(model, "negative")


@mutation((("nvfp4",), Found(("Q106",))), (ALL, Absent("no scale of the whole tensor")))
def global_scale_inverted(model: Checkpoint) -> None:
    model.put("weight_global_scale", 1 / model.array("weight_global_scale"))


# Parts that are missing, or elsewhere.


def _remove(model: Checkpoint, part: str) -> None:
    del model.tensors[f"{DOWN}.{part}"]


@mutation((ALL, Found(("Q103",))))
def scales_removed(model: Checkpoint) -> None:
    _remove(model, model.scales())


@mutation((ALL, Found(("Q103",))))
def scales_renamed(model: Checkpoint) -> None:
    name = f"{DOWN}.{model.scales()}"
    model.tensors[f"{name}_old"] = model.tensors.pop(name)


@mutation((ALL, Found(("Q103", "Q104"))))
def codes_removed(model: Checkpoint) -> None:
    _remove(model, model.codes())


@mutation((ZEROS, Found(("Q103",))), (ALL, NO_ZEROS))
def zero_points_removed(model: Checkpoint) -> None:
    _remove(model, model.zeros())


@mutation((("nvfp4",), Found(("Q103",))), (ALL, Absent("no scale of the whole tensor")))
def global_scale_removed(model: Checkpoint) -> None:
    _remove(model, "weight_global_scale")


@mutation((PACK, Found(("Q103",))), (ALL, Absent("no shape is stored")))
def shape_removed(model: Checkpoint) -> None:
    _remove(model, "weight_shape")


NO_INDEX = Absent("no index is stored")


@mutation((("gptq_desc",), Found(("Q103",))), (("gptq_asym",), Same()), (ALL, NO_INDEX))
def index_removed(model: Checkpoint) -> None:
    _remove(model, "g_idx")


def _move(model: Checkpoint) -> str:
    name = f"{DOWN}.{model.scales()}"
    model.files = dict.fromkeys(model.tensors, "model-00001-of-00002.safetensors")
    model.files[name] = "model-00002-of-00002.safetensors"
    return name


@mutation((ALL, Same()))
def scales_in_another_shard(model: Checkpoint) -> None:
    _move(model)


@mutation((ALL, Label(("Q005", "Q110"))))
def scales_in_another_shard_than_the_index_says(model: Checkpoint) -> None:
    model.lies[_move(model)] = "model-00001-of-00002.safetensors"


# Indexes.


@mutation((("gptq_asym", "gptq_desc"), Found(("Q304",))), (ALL, NO_INDEX))
def index_out_of_range(model: Checkpoint) -> None:
    model.array("g_idx")[7] = 99


def _shuffle(model: Checkpoint, layer: str) -> None:
    index = model.array("g_idx", layer)
    model.put("g_idx", np.random.default_rng(0).permutation(index), layer)


@mutation(
    (("gptq_asym",), Found(("Q106",))),
    (
        ("gptq_desc",),
        Undecidable("any order that fills the groups is one that act-order may give", ("Q604",
                                                                                       "Q611")),
    ),
    (ALL, NO_INDEX),
)  # fmt: skip
def index_shuffled(model: Checkpoint) -> None:
    _shuffle(model, DOWN)


@mutation(
    (("gptq_asym",), Found(("Q106",))),
    (("gptq_desc",), Found(("Q109",))),
    (ALL, NO_INDEX),
)
def index_of_a_fused_partner_shuffled(model: Checkpoint) -> None:
    _shuffle(model, Q)


# 8-bit floats of the other kind: FN has its NaN at 0x7F and 0xFF, FNUZ at 0x80, and half the value.

NOT_FP8 = Absent("codes are no 8-bit floats")


@mutation((FP8, Found(("Q303",))), (ALL, NOT_FP8))
def written_as_fnuz(model: Checkpoint) -> None:
    """The same weights as a program for FNUZ writes them: largest number 240, scales to match."""
    codes = model.array("weight").view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    stored = (codes * (240 / 448)).astype(ml_dtypes.float8_e4m3fnuz)
    model.put("weight", stored.view(np.uint8))
    name = model.scales()
    dtype = model.tensors[f"{DOWN}.{name}"][0]
    if dtype == "F32":
        model.put(name, model.array(name) * np.float32(448 / 240))
    else:
        scales = model.array(name).view(ml_dtypes.bfloat16).astype(np.float32) * (448 / 240)
        model.put(name, scales.astype(ml_dtypes.bfloat16).view(np.uint16))


@mutation(
    (FP8, Undecidable("a scale may be half as large for a weight half as large", ("Q613",))),
    (ALL, NOT_FP8),
)
def read_as_fnuz_and_written_as_fn(model: Checkpoint) -> None:
    """FN bytes taken for FNUZ stand for half; a program that keeps that halves the scales."""
    name = model.scales()
    if model.tensors[f"{DOWN}.{name}"][0] == "F32":
        model.put(name, model.array(name) / 2)
    else:
        model.put(name, model.array(name) - 0x80)  # one less in the exponent of a BF16

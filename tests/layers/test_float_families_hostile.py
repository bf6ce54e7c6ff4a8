"""Parts of float families that are missing, of odd dtype or shape, or not to be told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from float_cases import families, fits, module_of, opened, weights

from qassay.containers.safetensors_types import safetensors_type
from qassay.core.container import StoredTensor
from qassay.encodings.layers import Fit, LayerClaim, Module, assemble
from qassay.encodings.layers.assemble import modules_of
from qassay.encodings.registry import open_with_encodings
from qassay.report.manual import part_names, part_rows
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

FP8 = LayerClaim(method="fp8", quantized=True, block=(128, 128))
CT_FP8 = LayerClaim(method="compressed-tensors", format="float-quantized", quantized=True)
NVFP4 = LayerClaim(method="compressed-tensors", format="nvfp4-pack-quantized", quantized=True)
MODELOPT = LayerClaim(method="modelopt", format="NVFP4", quantized=True)
MXFP4 = LayerClaim(method="compressed-tensors", format="mxfp4-pack-quantized", quantized=True)
MXFP8 = LayerClaim(method="compressed-tensors", format="mxfp8-quantized", quantized=True)
GPT_OSS = LayerClaim(method="mxfp4", quantized=True)
NONE = LayerClaim()

Spec = dict[str, tuple[str, tuple[int, ...]]]


class NoBytes:
    """A source that must not be read: `fit` looks at headers only."""

    size = 0

    def read(self, *_place: int) -> None:
        raise AssertionError("fit read a tensor")


def module(spec: Spec, unreadable: str = "") -> Module:
    """Return a module with tensors of given dtype and shape, without any bytes."""
    made = {}
    for part, (dtype, shape) in spec.items():
        kind = safetensors_type(dtype)
        source = NoBytes()
        name = f"m{part}" if part.startswith("_") else f"m.{part}"
        made[part] = StoredTensor(
            name, kind, shape, source, 0, 0, "model.safetensors", part != unreadable
        )  # type: ignore[arg-type]
    return Module("m", made)


def broken(spec: Spec, claim: LayerClaim = NONE, unreadable: str = "") -> Fit:
    """Return the one verdict of all families, which must not be a layer."""
    found = fits(module(spec, unreadable), claim)
    assert all(fit.layer is None for fit in found.values())
    assert len(found) == 1, list(found)
    (fit,) = found.values()
    assert fit.defects
    return fit


FP8_OK: Spec = {"weight": ("F8_E4M3", (256, 512)), "weight_scale_inv": ("F32", (2, 4))}
NVFP4_OK: Spec = {
    "weight_packed": ("U8", (64, 64)),
    "weight_scale": ("F8_E4M3", (64, 8)),
    "weight_global_scale": ("F32", (1,)),
}
MODELOPT_OK: Spec = {
    "weight": ("U8", (64, 64)),
    "weight_scale": ("F8_E4M3", (64, 8)),
    "weight_scale_2": ("F32", ()),
}
MXFP4_OK: Spec = {"weight_packed": ("U8", (64, 64)), "weight_scale": ("U8", (64, 4))}
MXFP8_OK: Spec = {"weight": ("F8_E4M3", (64, 128)), "weight_scale": ("U8", (64, 4))}
GPT_OSS_OK: Spec = {"_blocks": ("U8", (2, 64, 4, 16)), "_scales": ("U8", (2, 64, 4))}
SOUND = {
    "fp8": (FP8_OK, FP8),
    "nvfp4.compressed": (NVFP4_OK, NVFP4),
    "nvfp4.modelopt": (MODELOPT_OK, MODELOPT),
    "mxfp4.compressed": (MXFP4_OK, MXFP4),
    "mxfp8.compressed": (MXFP8_OK, MXFP8),
    "mxfp4.gpt_oss": (GPT_OSS_OK, GPT_OSS),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_parts_fit_one_family_with_and_without_its_claim(name: str) -> None:
    spec, claim = SOUND[name]
    for said in (claim, NONE, LayerClaim(method="made-up", quantized=True)):
        found = fits(module(spec), said)
        assert list(found) == [name]
        assert found[name].layer is not None
        assert found[name].defects == ()


ALTERNATIVES = [
    (each.id, part.instead_of, part.name)
    for each in families()
    for part in each.parts
    if part.instead_of
]


def test_there_are_alternatives() -> None:
    assert [one[0] for one in ALTERNATIVES] == ["fp8", "mxfp4.gpt_oss", "mxfp4.gpt_oss"]


@pytest.mark.parametrize("name", sorted({name for name, _, _ in ALTERNATIVES}))
def test_what_a_page_calls_an_alternative_is_one(name: str) -> None:
    encoding = next(each for each in families() if each.id == name)
    spec, claim = SOUND[name]
    swap = {part.name: part.instead_of for part in encoding.parts if part.instead_of}
    plain = {swap.get(part, part): value for part, value in spec.items()}
    other = {next((new for new, old in swap.items() if old == part), part): value
             for part, value in plain.items()}  # fmt: skip
    assert set(plain) != set(other)
    required = {part.name for part in encoding.parts if part.required}
    assert set(plain) == required
    for parts in (plain, other):
        fit = fits(module(parts), claim)[name]
        assert (fit.layer is not None, fit.defects) == (True, ())
    needed = {row[0]: row[3] for row in part_rows(encoding)}
    for new, old in swap.items():
        assert needed[new] == f"instead of {old}"
        assert needed[old] == f"yes, or {new}"
        assert f"{old} or {new}" in part_names(encoding)


def test_every_declaration_says_what_it_is() -> None:
    for each in families():
        assert each.title().endswith(".")
        assert each.methods
        assert all(each.sources)


@pytest.mark.parametrize(
    ("name", "removed"),
    [(name, part) for name, (spec, _) in SOUND.items() for part in spec],
)
def test_a_part_that_is_missing_is_named(name: str, removed: str) -> None:
    spec, claim = SOUND[name]
    left = {part: value for part, value in spec.items() if part != removed}
    found = fits(module(left), claim)
    fit = found[name]
    assert all(each.layer is None for each in found.values())
    (defect,) = [each for each in fit.defects if each.data["part"].strip("_") in removed]
    assert defect.code == "Q103"
    assert defect.data["layer"] == "m"
    assert defect.tensor in {f"m{part}" if part[0] == "_" else f"m.{part}" for part in left}
    assert defect.found == "no such tensor"
    assert "expected" in defect.message


@pytest.mark.parametrize(
    ("name", "part"),
    # Another dtype of `weight` is another family, or a layer of floats.
    [(name, part) for name, (spec, _) in SOUND.items() for part in spec if part != "weight"],
)
def test_a_part_of_another_dtype_is_named(name: str, part: str) -> None:
    spec, claim = SOUND[name]
    changed = {**spec, part: ("I32", spec[part][1])}
    found = fits(module(changed), claim)
    assert all(fit.layer is None for fit in found.values())
    (defect,) = found[name].defects
    assert (defect.code, defect.found, defect.data["part"]) == ("Q103", "I32", part)
    assert defect.tensor in {f"m.{part}", f"m{part}"}


SHAPES: list[tuple[str, str, tuple[int, ...]]] = [
    ("fp8", "weight_scale_inv", (2, 3)),
    ("fp8", "weight_scale_inv", (3, 4)),
    ("fp8", "weight_scale_inv", (257, 1)),
    ("fp8", "weight_scale_inv", (512,)),
    ("fp8", "weight_scale_inv", (0, 4)),
    ("fp8", "weight_scale_inv", (2, 4, 1)),
    ("fp8", "weight_scale_inv", (1 << 40, 1 << 40)),
    ("fp8", "weight", (0, 512)),
    ("nvfp4.compressed", "weight_scale", (64, 4)),
    ("nvfp4.compressed", "weight_scale", (8, 64)),
    ("nvfp4.compressed", "weight_scale", (64, 8, 1)),
    ("nvfp4.compressed", "weight_scale", ()),
    ("nvfp4.compressed", "weight_packed", (64, 60)),
    ("nvfp4.compressed", "weight_packed", (64, 0)),
    ("nvfp4.compressed", "weight_packed", (4096,)),
    ("nvfp4.compressed", "weight_packed", (1 << 62, 1 << 62)),
    ("nvfp4.compressed", "weight_global_scale", (2,)),
    ("nvfp4.compressed", "weight_global_scale", (0,)),
    ("nvfp4.compressed", "weight_global_scale", (64, 1)),
    ("nvfp4.modelopt", "weight_scale", (63, 8)),
    ("nvfp4.modelopt", "weight_scale_2", (64,)),
    ("mxfp4.compressed", "weight_scale", (64, 8)),
    ("mxfp4.compressed", "weight_scale", (4, 64)),
    ("mxfp4.compressed", "weight_packed", (64, 65)),
    ("mxfp8.compressed", "weight", (64, 100)),
    ("mxfp4.gpt_oss", "_scales", (2, 64, 3)),
    ("mxfp4.gpt_oss", "_scales", (2, 64, 4, 1)),
    ("mxfp4.gpt_oss", "_blocks", (2, 64, 4, 8)),
    ("mxfp4.gpt_oss", "_blocks", (2, 64, 0, 16)),
    ("mxfp4.gpt_oss", "_blocks", (16,)),
]


@pytest.mark.parametrize(("name", "part", "shape"), SHAPES)
def test_shapes_that_disagree_are_named_with_what_was_expected(
    name: str, part: str, shape: tuple[int, ...]
) -> None:
    spec, claim = SOUND[name]
    changed = {**spec, part: (spec[part][0], shape)}
    fit = fits(module(changed), claim)[name]
    assert fit.layer is None
    defect = fit.defects[0]
    assert defect.code == "Q103"
    assert defect.expected
    assert str(defect.found) in defect.message
    assert defect.tensor in {f"m.{part}", f"m{part}", "m.weight_scale", "m_scales"}


@pytest.mark.parametrize("name", SOUND)
def test_a_part_outside_its_file_makes_no_layer(name: str) -> None:
    spec, claim = SOUND[name]
    for part in spec:
        fit = fits(module(spec, unreadable=part), claim)[name]
        assert fit.layer is None
        assert fit.defects == ()  # that is the container's to report
        assert "cannot be read" in fit.reason


def test_fp8_without_its_scale_is_a_plain_cast_unless_the_configuration_says_otherwise() -> None:
    bare: Spec = {"weight": ("F8_E4M3", (256, 512))}
    for claim in (
        NONE,
        LayerClaim(method="gptq", quantized=True),
        LayerClaim(method="fp8", quantized=False, because="lm_head"),
        LayerClaim(method="fp8"),  # says nothing of this layer
        LayerClaim(method="compressed-tensors", format="pack-quantized", quantized=True),
    ):
        assert fits(module(bare), claim) == {}
    for claim, part in ((FP8, "weight_scale_inv"), (CT_FP8, "weight_scale")):
        (defect,) = broken(bare, claim).defects
        assert (defect.code, defect.tensor, defect.data["part"]) == ("Q103", "m.weight", part)


def test_a_plain_cast_is_left_to_be_read_as_what_it_is(tmp_path: Path) -> None:
    with opened(tmp_path, weight=("F8_E4M3", np.full((4, 8), 0x38))) as container:
        found = assemble(container)
    assert (found.layers, found.defects) == ([], [])
    assert [tensor.part_of for tensor in found.loose] == [""]


def test_two_scales_for_one_weight_are_ambiguous() -> None:
    spec: Spec = {**FP8_OK, "weight_scale": ("F32", (2, 4))}
    (defect,) = broken(spec).defects
    assert defect.code == "Q105"


def test_tensors_of_other_families_are_left_alone() -> None:
    for spec in (
        {"qweight": ("I32", (16, 64)), "qzeros": ("I32", (1, 8)), "scales": ("F16", (1, 64))},
        {"weight_packed": ("I32", (64, 16)), "weight_scale": ("BF16", (64, 1))},
        {"weight": ("I8", (64, 64)), "weight_scale": ("BF16", (64, 1))},
        {"weight": ("U8", (2048, 1))},
        {"weight": ("U32", (64, 8)), "scales": ("BF16", (64, 1)), "biases": ("BF16", (64, 1))},
        {"weight": ("BF16", (64, 64))},
        {"weight": ("F8_E4M3", (64,)), "weight_scale": ("F32", ())},
        {"weight": ("F8_E4M3", (64, 3, 3, 3)), "weight_scale": ("F32", (64,))},
        {"weight": ("F8_E4M3", (64, 64)), "weight_scale": ("F32", ()),
         "weight_zero_point": ("F8_E4M3", ())},
        {"weight": ("U8", (64, 64)), "weight_scale": ("U8", (64, 4))},
        {"_scales": ("U8", (2, 64, 4))},
        {"_bias": ("BF16", (64,))},
        {"scales": ("U8", (64, 4))},
    ):  # fmt: skip
        assert fits(module(spec)) == {}, spec


def test_scale_dtype_and_shape_tell_nvfp4_from_mxfp4() -> None:
    by_16: Spec = {"weight_packed": ("U8", (64, 64)), "weight_scale": ("F8_E4M3", (64, 8))}
    (defect,) = broken(by_16).defects  # NVFP4 whose global scale was lost
    assert defect.data == {
        "layer": "m", "part": "weight_global_scale", "encoding": "nvfp4.compressed",
    }  # fmt: skip
    with_global: Spec = {**MXFP4_OK, "weight_global_scale": ("F32", (1,))}
    assert broken(with_global).encoding.id == "nvfp4.compressed"
    assert broken(with_global, MXFP4).encoding.id == "nvfp4.compressed"


def test_one_group_a_row_is_read_alike_by_fp8_and_mxfp8(tmp_path: Path) -> None:
    codes = np.random.default_rng(1).integers(0, 256, (8, 32), dtype=np.uint8)
    scales = np.arange(120, 128, dtype=np.uint8)[:, None]
    with module_of(tmp_path, weight=("F8_E4M3", codes), weight_scale=("U8", scales)) as found:
        (plain,) = fits(found).values()
        (claimed,) = fits(found, MXFP8).values()
        assert (plain.encoding.id, claimed.encoding.id) == ("fp8", "mxfp8.compressed")
        assert plain.layer is not None
        assert claimed.layer is not None
        assert np.array_equal(weights(plain.layer), weights(claimed.layer), equal_nan=True)


def test_scales_of_activations_belong_to_the_layer() -> None:
    for name, part, kind in (
        ("fp8", "input_scale", "F32"),
        ("nvfp4.compressed", "input_global_scale", "F32"),
        ("nvfp4.modelopt", "input_scale", "F32"),
    ):
        spec, claim = SOUND[name]
        (fit,) = fits(module({**spec, part: (kind, (1,))}), claim).values()
        assert fit.layer is not None
        assert part in fit.layer.parts
        assert fit.defects == ()
        (fit,) = fits(module({**spec, part: ("I64", (1,))}), claim).values()
        assert fit.layer is not None  # the weight is sound all the same
        assert part not in fit.layer.parts
        assert [(each.code, each.data["part"]) for each in fit.defects] == [("Q103", part)]


def test_shapes_of_every_kind_never_raise() -> None:
    rng = np.random.default_rng(11)
    dims = [0, 1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 64, 127, 128, 129, 512, 1 << 31, 1 << 62]
    kinds = ["F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "I8", "I32", "F32", "BF16", "F64", "C64", "?"]
    blocks = [None, (0, 0), (-1, 128), (128, 128), (1, 128), (1 << 62, 1 << 62)]
    names = sorted({part.name for each in families() for part in each.parts})
    sound: list[Spec] = [{}, *(spec for spec, _ in SOUND.values())]
    seen = {"layers": 0, "defects": 0}
    for _ in range(6000):
        spec = dict(sound[int(rng.integers(len(sound)))])
        for name in rng.choice(names, size=rng.integers(0, 4), replace=False):
            rank = int(rng.integers(0, 5))
            shape = tuple(dims[int(at)] for at in rng.integers(0, len(dims), rank))
            spec[str(name)] = (kinds[int(rng.integers(len(kinds)))], shape)
        for name in list(spec)[int(rng.integers(0, 9)) :]:
            del spec[name]
        if not spec:
            continue
        claim = LayerClaim(
            method=str(rng.choice(["", "fp8", "modelopt", "mxfp4", "x"])),
            format=str(rng.choice(["", "NVFP4", "mxfp8-quantized", "float-quantized"])),
            quantized=[None, True, False][int(rng.integers(3))],
            block=blocks[int(rng.integers(len(blocks)))],
            group_size=[None, -1, 0, 32, 128][int(rng.integers(5))],
        )
        for fit in fits(module(spec), claim).values():
            seen["defects"] += len(fit.defects)
            if fit.layer is None:
                assert fit.defects
                continue
            seen["layers"] += 1
            layer = fit.layer
            assert layer.rows > 0
            assert layer.columns > 0
            assert layer.group > 0
            assert layer.group_rows > 0
            assert layer.label
            assert layer.bits_per_weight >= 0
            for defect in fit.defects:
                assert len(defect.message) < 1000
    assert seen["defects"] > 1000
    assert seen["layers"] > 1000


def test_names_out_of_files_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    name = "evil\x1b[31m.weight_packed"
    path.write_bytes(write_safetensors([SafeTensor(name, "U8", [2, 32], bytes(64))]))
    container = open_with_encodings(path)
    (found,) = modules_of(container.tensors).values()
    for claim in (NVFP4, MXFP4):
        for fit in fits(found, claim).values():
            assert all("\x1b" not in defect.message for defect in fit.defects)
            assert fit.defects
    container.close()

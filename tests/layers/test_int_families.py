"""GPTQ, AWQ and compressed-tensors as other tools wrote them, and against what they decode to."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from int_cases import CHECKPOINTS, NONE, checkpoint, fits, module, only, same

from qassay.encodings.layers import Layer, LayerClaim

FIXTURES = CHECKPOINTS.parent
SHAPES = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "mlp.gate_proj": (512, 256),
    "mlp.up_proj": (512, 256),
    "mlp.down_proj": (256, 512),
}
PACK = LayerClaim(method="compressed-tensors", format="pack-quantized")
FOLDERS = {  # family, bits, claim
    "autoround-w3a16": (
        "gptq",
        3,
        LayerClaim(method="auto-round", format="auto_round:auto_gptq", group_size=128),
    ),
    "autoround-w4a16": ("gptq", 4, LayerClaim(method="auto-round", format="auto_round:auto_gptq")),
    "autoround-w4a16-asym-gptq": ("gptq", 4, LayerClaim(method="gptq", act_order=False)),
    "autoround-w4a16-awq": ("awq", 4, LayerClaim(method="awq", format="gemm")),
    "gptqmodel-gptq-w4g128-desc": (
        "gptq",
        4,
        LayerClaim(method="gptq", format="gptq", act_order=True),
    ),
    "llmcompressor-w4a16": ("compressed.pack", 4, PACK),
    "llmcompressor-w4a16_asym": ("compressed.pack", 4, PACK),
}
ROUNDED = {  # what the tool rounds its weights to; README of the fixtures
    "autoround-w3a16": np.float16,
    "autoround-w4a16": np.float16,
    "llmcompressor-w4a16": ml_dtypes.bfloat16,
    "llmcompressor-w4a16_asym": ml_dtypes.bfloat16,
}
WITHIN = {"autoround-w4a16-awq": 5.2e-4, "gptqmodel-gptq-w4g128-desc": 4.6e-4}


def layers(name: str, modules, claim: LayerClaim) -> dict[str, Layer]:
    return {part: only(modules[f"model.layers.0.{part}"], claim) for part in SHAPES}


def dequantized(layer: Layer, stop: int | None = None) -> np.ndarray:
    return layer.encoding.unpack(layer, 0, stop).dequantize()


def oracle(name: str, part: str) -> np.ndarray:
    with np.load(CHECKPOINTS / name / "oracle.npz") as kept:
        (key,) = [key for key in kept.files if key.startswith(f"model.layers.0.{part}.weight")]
        return kept[key]


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("name", FOLDERS)
def test_each_is_told_by_its_tensors(name, claimed):
    family, bits, claim = FOLDERS[name]
    with checkpoint(name) as modules:
        for part, layer in layers(name, modules, claim if claimed else NONE).items():
            assert (layer.encoding.id, layer.bits, layer.group) == (family, bits, 128)
            assert (layer.rows, layer.columns) == SHAPES[part]
            assert layer.label == f"{family}.int{bits}"
            assert layer.evidence
            scale = layer.parts["scales" if "scales" in layer.parts else "weight_scale"]
            assert scale.size == layer.rows * layer.groups
        norm = modules["model.layers.0.input_layernorm"]
        assert fits(norm, claim) == {}


@pytest.mark.parametrize("part", ["self_attn.q_proj", "mlp.down_proj"])
@pytest.mark.parametrize("name", ROUNDED)
def test_weights_equal_the_tools_own(name, part):
    theirs = oracle(name, part)
    with checkpoint(name) as modules:
        ours = dequantized(layers(name, modules, FOLDERS[name][2])[part], len(theirs))
    rounded = ours.astype(ROUNDED[name]).astype(np.float32)
    assert np.array_equal(rounded, theirs.astype(np.float32))


@pytest.mark.parametrize("part", ["self_attn.q_proj", "mlp.down_proj"])
@pytest.mark.parametrize("name", WITHIN)
def test_weights_are_as_near_as_the_tool_can_tell(name, part):
    theirs = oracle(name, part).astype(np.float32)
    with checkpoint(name) as modules:
        layer = layers(name, modules, FOLDERS[name][2])[part]
        step = layer.encoding.unpack(layer).scales.min()
        ours = dequantized(layer, len(theirs))
    assert np.abs(ours - theirs).max() <= WITHIN[name]
    assert WITHIN[name] < step / 2  # so that no code can be off by one


def test_asymmetric_gptq_is_the_source_within_half_a_step():
    name = "autoround-w4a16-asym-gptq"
    with checkpoint(name) as modules, checkpoint("source-tiny-llama-f16") as source:
        for part, layer in layers(name, modules, FOLDERS[name][2]).items():
            floats = source[f"model.layers.0.{part}"].tensors["weight"]
            truth = floats.raw().view(np.float16).reshape(floats.shape).astype(np.float32)
            made = layer.encoding.unpack(layer)
            error = np.abs(made.dequantize() - truth) / made.spread(made.scales)
            # Half a step of rounding a weight. The zero point is rounded, too, so that a weight
            # at the end of its group's range can be clipped by as much again. Codes go up to 15
            # from a zero point of at most 15: the rounding of the scale to f16 moves a product
            # by no more than 15 * 2^-11 steps.
            assert error.max() <= 0.5 + 0.5 + 15 * 2**-11
            inside = (made.codes > 0) & (made.codes < 15)
            assert error[inside].max() <= 0.5 + 15 * 2**-11
            assert error.mean() == pytest.approx(0.25, abs=0.02)
            assert len(np.unique(made.zeros)) > 1


@pytest.mark.parametrize("name", FOLDERS)
def test_packing_gives_back_the_files_bytes(name):
    family, _, claim = FOLDERS[name]
    with checkpoint(name) as modules:
        for layer in layers(name, modules, claim).values():
            packed = layer.encoding.pack(layer, layer.encoding.unpack(layer))
            whole = {"gptq": {"qweight", "qzeros"}, "awq": {"qweight", "qzeros"}}
            optional = {"weight_zero_point"} & set(layer.parts)
            assert set(packed) == whole.get(family, {"weight_packed"} | optional)
            for part, values in packed.items():
                assert values.dtype == np.int32
                assert values.shape == layer.parts[part].shape
                assert values.tobytes() == layer.parts[part].raw().tobytes()


@pytest.mark.parametrize("name", FOLDERS)
def test_slabs_are_slabs_of_the_whole(name):
    with checkpoint(name) as modules:
        layer = layers(name, modules, FOLDERS[name][2])["mlp.down_proj"]
        whole = layer.encoding.unpack(layer)
        for start, stop in ((0, 1), (1, 8), (7, 100), (33, 65), (200, 256), (256, 256)):
            slab = layer.encoding.unpack(layer, start, stop)
            assert np.array_equal(slab.codes, whole.codes[start:stop])
            assert np.array_equal(slab.scales, whole.scales[start:stop])
            assert np.array_equal(slab.zeros, whole.zeros[start:stop])
            assert np.array_equal(slab.dequantize(), whole.dequantize()[start:stop])


def test_the_act_order_checkpoint_is_ordered_by_its_index():
    name = "gptqmodel-gptq-w4g128-desc"
    with checkpoint(name) as modules:
        layer = layers(name, modules, FOLDERS[name][2])["self_attn.q_proj"]
        groups = layer.encoding.unpack(layer).groups
        assert np.array_equal(groups, layer.array("g_idx"))
        assert (np.diff(groups) < 0).any()


def golden() -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "converter_repack_golden.npz") as kept:
        return dict(kept)


def nibbles(packed: np.ndarray) -> np.ndarray:
    """Return what the converter packs: two codes a byte, the first in the low nibble."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def test_codes_and_zero_points_are_those_of_a_converter():
    kept = golden()
    assert np.array_equal(nibbles(kept["gptq_out_qweight"]), kept["true_q_NK"])
    families = {
        "gptq": module(
            qweight=kept["gptq_qweight"], qzeros=kept["gptq_qzeros"], scales=kept["gptq_scales"]
        ),
        "awq": module(
            qweight=kept["awq_qweight"], qzeros=kept["awq_qzeros"], scales=kept["awq_scales"]
        ),
        "compressed.pack": module(
            weight_packed=kept["ct_weight_packed"],
            weight_scale=kept["ct_scale"],
            weight_shape=np.array([64, 128]),
            weight_zero_point=kept["ct_zero_point"],
        ),
    }
    theirs = {"gptq": "gptq", "awq": "awq", "compressed.pack": "ct"}
    for family, tensors in families.items():
        layer = only(tensors)
        assert layer.encoding.id == family
        made = layer.encoding.unpack(layer)
        prefix = theirs[family]
        assert np.array_equal(made.codes, nibbles(kept[f"{prefix}_out_qweight"])), family
        assert np.array_equal(made.codes, kept["true_q_NK"]), family
        assert np.array_equal(made.zeros, kept[f"{prefix}_out_qzeros"]), family
        assert np.array_equal(made.zeros, kept["true_z"]), family
        for part, values in layer.encoding.pack(layer, made).items():
            assert np.array_equal(values, tensors.tensors[part].raw().view(np.int32).reshape(
                values.shape))  # fmt: skip


def test_three_packings_of_one_weight_have_one_canonical_form():
    kept = golden()
    scales = np.ascontiguousarray(kept["gptq_scales"])
    forms = []
    for tensors in (
        module(qweight=kept["gptq_qweight"], qzeros=kept["gptq_qzeros"], scales=scales),
        module(qweight=kept["awq_qweight"], qzeros=kept["awq_qzeros"], scales=scales),
        module(
            weight_packed=kept["ct_weight_packed"],
            weight_scale=np.ascontiguousarray(scales.T),
            weight_shape=np.array([64, 128]),
            weight_zero_point=kept["ct_zero_point"],
        ),
    ):
        layer = only(tensors)
        forms.append(layer.encoding.unpack(layer))
    same(forms[0], forms[1])
    same(forms[0], forms[2])


def test_a_symmetric_packed_weight_has_zero_points_in_the_middle():
    kept = golden()
    layer = only(
        module(
            weight_packed=kept["ct_weight_packed"],
            weight_scale=kept["ct_scale"],
            weight_shape=np.array([64, 128]),
        )
    )
    made = layer.encoding.unpack(layer)
    assert layer.symmetric is True
    assert np.array_equal(made.zeros, kept["ct_sym_out_qzeros"])

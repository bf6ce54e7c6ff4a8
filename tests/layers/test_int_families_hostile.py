"""Parts of integer families that are missing, of odd dtype or shape, or lie in some other way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int_cases import NONE, faults, fits, module, only, told, unread

from qassay.encodings.layers import LayerClaim, assemble
from qassay.encodings.layers.fitting import span
from qassay.encodings.registry import open_with_encodings
from qassay.testing.safetensors_writer import write_safetensors

GPTQ = {"qweight": ("I32", (32, 128)), "qzeros": ("I32", (2, 16)), "scales": ("F16", (2, 128))}
AWQ = {"qweight": ("I32", (256, 16)), "qzeros": ("I32", (2, 16)), "scales": ("F16", (2, 128))}
GEMV = {"qweight": ("I32", (128, 32)), "qzeros": ("I32", (128, 1)), "scales": ("F16", (128, 8))}
INT = {"weight": ("I8", (128, 256)), "weight_scale": ("BF16", (128, 2))}
CLAIMS = {
    "gptq": LayerClaim("gptq", "gptq", group_size=128),
    "awq": LayerClaim("awq", "gemm", group_size=128),
    "awq.gemv": LayerClaim("awq", "gemv", group_size=128),
    "compressed.int": LayerClaim("compressed-tensors", "int-quantized", True),
    "compressed.pack": LayerClaim("compressed-tensors", "pack-quantized", True),
}
SOUND = {"gptq": GPTQ, "awq": AWQ, "awq.gemv": GEMV, "compressed.int": INT}


def packed(**changes):
    parts = {
        "weight_packed": np.zeros((128, 32), np.int32),
        "weight_scale": np.ones((128, 2), np.float16),
        "weight_shape": np.array([128, 256]),
        "weight_zero_point": np.zeros((16, 2), np.int32),
        **changes,
    }
    return module(**{part: values for part, values in parts.items() if values is not None})


@pytest.mark.parametrize("claim", [NONE, *CLAIMS.values()])
@pytest.mark.parametrize("family", SOUND)
def test_whatever_the_configuration_says_the_tensors_decide(family, claim):
    if family == "awq.gemv" and claim.group_size is None:
        return  # tested with group sizes
    assert only(told(SOUND[family]), claim).encoding.id == family
    assert only(packed(), claim).encoding.id == "compressed.pack"


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize(
    ("family", "part"),
    [(f, p) for f, parts in SOUND.items() for p in list(parts)[1:]],
)
def test_a_part_that_is_missing(family, part, claimed):
    rest = {name: what for name, what in SOUND[family].items() if name != part}
    claim = CLAIMS[family] if claimed else NONE
    if not claimed and family in ("awq.gemv", "compressed.int"):
        assert unread(told(rest), claim) == [] or family == "awq.gemv"
        return
    assert part in faults(told(rest), family, claim)


@pytest.mark.parametrize("family", SOUND)
def test_a_part_of_a_wrong_shape_dtype_or_that_cannot_be_read(family):
    for part, (dtype, shape) in list(SOUND[family].items())[1:]:
        wrong = [(*shape[:-1], shape[-1] + 1), shape[::-1], (*shape, 1), (), (0, *shape[1:])]
        if family == "compressed.int":
            wrong = [(128, 3), (2, 128), (64, 2), (128, 2, 1), (0, 2), (128, 256), (129,)]
        for bad in wrong:
            if bad == shape:
                continue
            with_bad = told({**SOUND[family], part: (dtype, bad)})
            assert faults(with_bad, family, CLAIMS[family]), (part, bad)
        odd = told({**SOUND[family], part: ("F8_E4M3", shape)})
        assert part in faults(odd, family, CLAIMS[family])
        for fit in unread(odd):
            assert fit.encoding.id != family or (fit.reason and not fit.defects)
        for fit in unread(told(SOUND[family], unreadable=part), CLAIMS[family]):
            assert fit.encoding.id != family or "cannot be read" in fit.reason


@pytest.mark.parametrize("family", SOUND)
def test_codes_of_a_wrong_kind_or_that_cannot_be_read(family):
    part, (dtype, shape) = next(iter(SOUND[family].items()))
    rest = SOUND[family]
    for kind, dims in [
        ("I64", shape),
        ("I16", shape),
        ("U8", shape),
        (dtype, (*shape, 1)),
        (dtype, shape[:1]),
        (dtype, ()),
        (dtype, (0, shape[1])),
        (dtype, (shape[0], 0)),
    ]:
        for fit in unread(told({**rest, part: (kind, dims)}), CLAIMS[family]):
            assert fit.reason or fit.defects
    assert any("cannot be read" in fit.reason for fit in unread(told(rest, unreadable=part), NONE))


def test_act_order_without_its_index():
    claim = LayerClaim("gptq", act_order=True)
    assert faults(told(GPTQ), "gptq", claim) == ["g_idx"]
    wrong = told({**GPTQ, "g_idx": ("I32", (255,))})
    assert faults(wrong, "gptq", claim) == ["g_idx"]
    # Three words hold 32 codes of 3 bits: 25 words hold no whole number of them.
    three = {"qweight": ("I32", (25, 128)), "qzeros": ("I32", (2, 12)), "scales": GPTQ["scales"]}
    assert faults(told(three), "gptq") == ["qweight"]
    assert only(told({**GPTQ, "g_idx": ("I32", (256,))}), claim).encoding.id == "gptq"
    ordered = LayerClaim("compressed-tensors", "pack-quantized", act_order=True)
    assert faults(packed(), "compressed.pack", ordered) == ["weight_g_idx"]


@pytest.mark.parametrize("name", ["gptq_p", "marlin", "bitblas", "a new one"])
def test_packings_of_gptq_that_are_not_read(name):
    (said,) = [f for f in unread(told(GPTQ), LayerClaim("gptq", name)) if f.encoding.id == "gptq"]
    assert said.reason
    assert said.defects == ()


@pytest.mark.parametrize("name", ["gemv_fast", "marlin", "exllama"])
def test_packings_of_awq_that_are_not_read(name):
    (said,) = [f for f in unread(told(AWQ), LayerClaim("awq", name)) if f.encoding.id == "awq"]
    assert said.reason
    assert said.defects == ()


def test_words_of_other_methods_are_nobodys():
    # SqueezeLLM: qweight like GPTQ's, and a table instead of scales.
    squeeze = {"qweight": ("I32", (32, 128)), "lookup_table": ("F16", (128, 16))}
    assert fits(told(squeeze)) == {}
    # bitsandbytes int8, EETQ.
    assert fits(told({"weight": ("I8", (8, 8)), "SCB": ("F32", (8,))})) == {}
    eetq = {"qweight": ("I8", (8, 8)), "weight_scales": ("F16", (8,))}
    assert fits(told(eetq)) == {}
    # marlin-24 of compressed-tensors.
    marlin = {"weight_packed": ("I32", (8, 64)), "scale_packed": ("F16", (2, 64)),
              "meta": ("I16", (64, 8))}  # fmt: skip
    assert fits(told(marlin)) == {}


@pytest.mark.parametrize("strange", ["weight_offset", "weight_scale_2", "weight_zp"])
def test_a_companion_that_is_not_known_may_change_what_codes_mean(strange):
    for fit in unread(told({**INT, strange: ("F32", (128, 2))})):
        assert fit.encoding.id != "compressed.int" or strange in fit.reason
    said = fits(packed(**{strange: np.ones((128, 2), np.float32)}))["compressed.pack"]
    assert said.layer is None
    assert strange in said.reason


@pytest.mark.parametrize(
    "says",
    [
        [127, 256],
        [128, 264],
        [128, 0],
        [128, -256],
        [-128, 256],
        [256, 128],
        [2**62, 2**62],
        [128, 2**63 - 1],
        [-(2**63), -(2**63)],
    ],
)
def test_weight_shape_that_lies(says):
    wrong = packed(weight_shape=np.array(says, np.int64))
    assert faults(wrong, "compressed.pack") == ["weight_shape"]


def test_parts_of_packed_weights_that_are_missing_or_misshaped():
    claim = CLAIMS["compressed.pack"]
    for part in ("weight_scale", "weight_shape"):
        assert faults(packed(**{part: None}), "compressed.pack") == [part]
    both = packed(weight_scale=None, weight_shape=None)
    assert fits(both) == {}
    assert faults(both, "compressed.pack", claim) == ["weight_shape", "weight_scale"]
    wrong = {
        "weight_shape": [np.array([128]), np.array([[128, 256]]), np.array([1, 128, 256])],
        "weight_scale": [np.ones(s, np.float16) for s in ((2, 128), (128, 3), (64, 2), (128, 256))],
        "weight_zero_point": [
            np.zeros(s, np.int32) for s in ((2, 16), (16, 1), (128, 2), (16,), (15, 2))
        ],
        "weight_g_idx": [np.zeros(s, np.int32) for s in ((255,), (256, 1), ())],
    }
    for part, values in wrong.items():
        for value in values:
            assert faults(packed(**{part: np.asarray(value)}), "compressed.pack") == [part]


def test_a_misshaped_activation_scale_does_not_stop_decoding_of_its_weight():
    # Its dtype is what can be wrong with it; no shape is foreign to all strategies.
    what = packed(input_scale=np.ones(1, np.int32))
    fit = fits(what, CLAIMS["compressed.pack"])["compressed.pack"]
    assert fit.layer is not None
    assert [defect.data["part"] for defect in fit.defects] == ["input_scale"]


def test_companions_may_lie_in_other_files():
    assert {tensor.path for tensor in packed().tensors.values()} > {"weight_scale.safetensors"}
    layer = only(packed())
    assert layer.encoding.unpack(layer).dequantize().shape == (128, 256)


@settings(max_examples=300, deadline=None)
@given(total=st.integers(-2, 300), count=st.integers(-2, 300), claimed=st.integers(-2, 300))
def test_runs(total, count, claimed):
    found = span(total, count, claimed)
    if found is not None:
        assert 1 <= found <= total
        assert -(-total // found) == count
        assert total % count == 0 or found == min(claimed, total)
    elif 0 < count <= total:
        assert total % count
        assert claimed <= 0 or -(-total // claimed) != count


DIMS = (0, 1, 2, 3, 8, 16, 32, 128, 256, 2**31, 2**63 - 1)
SHAPE = st.lists(st.sampled_from(DIMS), max_size=3).map(tuple)
DTYPE = st.sampled_from(["I32", "I64", "I8", "U8", "F16", "BF16", "F32", "F8_E4M3", "XYZ"])


@settings(max_examples=600, deadline=None)
@given(
    parts=st.dictionaries(
        st.sampled_from(
            [
                "qweight",
                "qzeros",
                "scales",
                "g_idx",
                "weight",
                "weight_packed",
                "weight_scale",
                "weight_zero_point",
                "weight_g_idx",
                "input_scale",
            ]
        ),
        st.tuples(DTYPE, SHAPE),
    ),
    claim=st.sampled_from([NONE, *CLAIMS.values()]),
)
def test_no_shapes_and_dtypes_make_fit_fail(parts, claim):
    for fit in fits(told(parts), claim).values():
        assert fit.layer is not None or fit.defects or fit.reason
        if fit.layer is not None:
            assert fit.layer.rows > 0
            assert fit.layer.columns > 0
            assert 0 < fit.layer.group <= fit.layer.columns


SMALL = st.lists(st.sampled_from((1, 2, 3, 4, 8, 16, 24, 32)), min_size=1, max_size=2).map(tuple)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_whatever_fits_unpacks_and_packs(data):
    kinds = {"qweight": np.int32, "qzeros": np.int32, "scales": np.float16, "g_idx": np.int32}
    if data.draw(st.booleans()):
        kinds = {"weight": np.int8, "weight_scale": np.float32, "weight_zero_point": np.int8}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    parts = {}
    for part, kind in kinds.items():
        if part in ("g_idx", "weight_zero_point") and data.draw(st.booleans()):
            continue
        shape = data.draw(SMALL)
        raw = rng.integers(-128, 128, shape)
        parts[part] = raw.astype(kind)
    for fit in fits(module(**parts)).values():
        if fit.layer is None or fit.layer.encoding.id not in (*SOUND, "compressed.pack"):
            continue
        layer = fit.layer
        made = layer.encoding.unpack(layer)
        assert made.dequantize().shape == (layer.rows, layer.columns)
        for part, values in layer.encoding.pack(layer, made).items():
            assert values.shape == layer.parts[part].shape


def test_a_file_of_broken_layers_is_told_and_not_decoded(tmp_path):
    broken = [
        ("a.qweight", "I32", [32, 128], bytes(32 * 128 * 4)),
        ("a.scales", "F16", [2, 128], bytes(512)),
        ("b.weight_packed", "I32", [8, 8], bytes(256)),
        ("b.weight_scale", "F16", [8, 1], bytes(16)),
        ("b.weight_shape", "I64", [2], np.array([8, 2**40]).tobytes()),
        ("c.qweight", "I16", [4, 4], bytes(32)),
        ("c.scales", "F16", [1, 4], bytes(8)),
        ("c.qzeros", "F16", [1, 4], bytes(8)),
    ]
    path = tmp_path / "model.safetensors"
    path.write_bytes(write_safetensors(broken))
    container = open_with_encodings(path)
    found = assemble(container)
    assert found.layers == []
    assert {defect.data["layer"] for defect in found.defects} == {"a", "b"}
    assert all(tensor.part_of for tensor in found.loose)
    reasons = {tensor.name: tensor.part_of for tensor in found.loose}
    assert "I16" in reasons["c.qweight"]
    container.close()


def test_no_two_families_take_the_same_sound_weight():
    for (name, one), (other, _) in itertools.permutations(SOUND.items(), 2):
        claim = CLAIMS[other]
        whole = {f.encoding.id for f in fits(told(one), claim).values() if f.layer}
        assert whole <= {name}

"""Public bug reports of checkpoints: each built as a file, each verdict checked.

Sections F (GPTQ), G (AWQ), H (AutoRound), J (compressed-tensors), K (NVFP4, MXFP4), L (FP8) and S
(readers and converters) of the project's collection, as far as the file is to blame, or to be
cleared; a test is called after its row. Section C is in `test_reports.py`.

Not built, because what is wrong is no property of a file:

F3, F8, F14, G6, K11: a kernel that takes a sound file for another layout, or only one layout.
    What can be said of the file is tested (F3: the other label; F14: it is sound; G6: the
    reference decodes groups of 64).
F9, F10, F12, G3, H4, K6, K9, S1, S7: two programs disagree on one file. What the file says is
    tested (F10: it is sound; G3, K6, K9: the bytes mean what they mean). F9, F12, H4, S1 and S7
    need the other program's output.
G7: folding of a norm that is 1 + w is wrong before anything is quantized.
J5: the runtime builds no quantized layer; the file is the same as a sound one (J4).
K7: the rule by which an exponent was chosen cannot be told from a file; what each gives is tested.
K3: one stored scale for a joined matrix is legal (J6); that a runtime has two places for it is
    its own affair. What is tested is that it serves both halves.
L8: a scale that is too coarse for half of a matrix is seen by comparing with the source only; the
    loss is shown, and that a scale a row cures it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from qassay.cli.main import cli
from qassay.core.finding import Finding, Severity
from qassay.encodings import by_id
from qassay.encodings.layers import Layer, assemble
from qassay.encodings.registry import open_with_encodings
from qassay.run.check import CheckResult, check
from qassay.run.compare import compare
from qassay.run.options import CheckOptions
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.layers import layer_tensors
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

MLP = "model.layers.0.mlp"
UP = f"{MLP}.up_proj"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
Tensors = dict[str, tuple[str, tuple[int, ...], np.ndarray]]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("QASSAY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def layer(family: str, name: str = UP, shape: tuple[int, int] = (32, 64), **more: Any) -> Tensors:
    return layer_tensors({"layer": family, "name": name, "shape": list(shape), **more})


def plain(name: str, encoding: str, values: np.ndarray) -> Tensors:
    """Return a tensor whose bytes are those of an array."""
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return {name: (encoding, values.shape, raw)}


def folder(
    *parts: Tensors, config: dict[str, Any] | None = None, name: str = "model",
    shards: Callable[[str], int] | None = None, **more: Any,
) -> Path:  # fmt: skip
    """Write a checkpoint folder of some tensors, in two shards if `shards` deals them out."""
    place = Path(name)
    place.mkdir()
    files: dict[str, list[SafeTensor]] = {}
    weight_map = {}
    for tensor, (encoding, shape, raw) in (item for part in parts for item in part.items()):
        dtype = dict(stored.key for stored in by_id(encoding).stored_as)["safetensors"]
        at = shards(tensor) if shards else 0
        file = f"model-{at:05}-of-00002.safetensors" if at else "model.safetensors"
        weight_map[tensor] = file
        files.setdefault(file, []).append(SafeTensor(tensor, dtype, list(shape), raw.tobytes()))
    for file, tensors in files.items():
        (place / file).write_bytes(write_safetensors(tensors))
    if shards:
        document = {"metadata": {}, "weight_map": weight_map}
        (place / "model.safetensors.index.json").write_text(json.dumps(document))
    if config is not None or more:
        document = {**more, **({} if config is None else {"quantization_config": config})}
        (place / "config.json").write_text(json.dumps(document))
    return place


def checked(path: Path) -> CheckResult:
    result = check(path, CheckOptions())
    assert result.facts.crashed == []
    return result


def serious(path: Path) -> list[Finding]:
    return [each for each in checked(path).findings if each.severity > Severity.INFO]


def codes(path: Path) -> list[str]:
    return [each.code for each in serious(path)]


def is_sound(path: Path) -> bool:
    result = checked(path)
    worst = max((each.severity for each in result.findings), default=Severity.INFO)
    return result.complete and worst == Severity.INFO


def layers(path: Path) -> dict[str, Layer]:
    container = open_with_encodings(path)
    return {each.module: each for each in assemble(container).layers}


def weights(path: Path, module: str = UP) -> np.ndarray:
    found = layers(path)[module]
    return found.encoding.unpack(found).dequantize()


def pack_config(**weights: Any) -> dict[str, Any]:
    settings = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                "group_size": 32, **weights}  # fmt: skip
    layout = settings.pop("format", "pack-quantized")
    group = {"targets": ["Linear"], "weights": settings, **settings.pop("group", {})}
    return {
        "quant_method": "compressed-tensors", "format": layout, "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip


class TestF:
    def test_f1_zero_points_of_version_2_under_the_label_of_version_1(self) -> None:
        model = folder(
            layer("gptq", shape=(64, 256), group=32, symmetric=True, zero_offset=0),
            config={**GPTQ, "checkpoint_format": "gptq"},
        )
        stored = layers(model)[UP].array("qzeros")
        assert (stored.view(np.uint32) == 0x88888888).all()
        (finding,) = serious(model)
        assert (finding.code, finding.data["shift"]) == ("Q102", -1)
        assert "gptq_v2" in finding.message
        assert "1 step of its group too low" in finding.message

    def test_f2_two_bits_with_varying_zero_points_of_version_2(self) -> None:
        recipe = {"bits": 2, "group": 32, "zero_offset": 0, "shape": (64, 256)}
        model = folder(
            layer("gptq", **recipe, parts={"qzeros": 0x55555555}),  # type: ignore[arg-type]
            config={**GPTQ, "bits": 2, "sym": False, "checkpoint_format": "gptq_v2"},
        )
        found = layers(model)[UP]
        canonical = found.encoding.unpack(found)
        assert canonical.zeros is not None
        assert (canonical.zeros == 1).all(), "not 2"

    def test_f3_the_reverse_of_f1(self) -> None:
        model = folder(
            layer("gptq", shape=(64, 256), group=32, symmetric=True),
            config={**GPTQ, "checkpoint_format": "gptq_v2"},
        )
        (finding,) = serious(model)
        assert (finding.code, finding.data["shift"]) == ("Q102", 1)

    def test_f4_rows_of_packed_3_bit_codes(self) -> None:
        three = layer("gptq", shape=(32, 4096), bits=3, group=128, symmetric=True)
        assert three[f"{UP}.qweight"][1] == (384, 32)
        config = {**GPTQ, "bits": 3, "group_size": 128}
        sound = folder(three, config=config)
        assert is_sound(sound)
        found = layers(sound)[UP]
        assert set(np.unique(found.encoding.unpack(found).codes)) == set(range(8))
        packed = found.encoding.pack(found, found.encoding.unpack(found))
        assert np.array_equal(packed["qweight"], found.array("qweight"))
        long = np.zeros((410, 32), np.int32)
        more = {**three, **plain(f"{UP}.qweight", "i32", long)}
        assert set(codes(folder(more, config=config, name="long"))) == {"Q103"}

    def test_f10_eight_bits_with_127_stored(self) -> None:
        model = folder(layer("gptq", bits=8, group=32, symmetric=True), config={**GPTQ, "bits": 8})
        stored = layers(model)[UP].array("qzeros").view(np.uint8)
        assert (stored == 127).all()
        assert is_sound(model)

    def test_f13_groups_take_their_own_scale(self) -> None:
        parts = layer("gptq", group=32, symmetric=True, without=["g_idx"])
        scales = np.repeat([[1], [1000]], 32, axis=1).astype(np.float16)
        model = folder({**parts, **plain(f"{UP}.scales", "f16", scales)}, config=GPTQ)
        found = layers(model)[UP]
        centred = found.encoding.unpack(found).centred()
        wanted = centred * np.repeat([1, 1000], 32).astype(np.float32)
        assert np.array_equal(weights(model), wanted)

    def test_f14_three_bits_without_groups_in_act_order(self) -> None:
        model = folder(
            layer("gptq", bits=3, symmetric=True, order=True),
            config={**GPTQ, "bits": 3, "group_size": -1, "desc_act": True},
        )
        assert is_sound(model)


class TestG:
    def test_g3_one_tile_as_awq_and_as_gptq(self) -> None:
        shape = (8, 128)
        awq = folder(layer("awq", shape=shape, group=32), config=AWQ)
        gptq = folder(
            layer("gptq", shape=shape, group=32), config={**GPTQ, "sym": False}, name="gptq"
        )
        assert np.array_equal(weights(awq), weights(gptq))
        assert compare(awq, gptq).comparison.relation == "equal"

    def test_g4_gemm_and_gemv_are_told_apart(self) -> None:
        gemm = folder(layer("awq", shape=(64, 256), group=64), config={**AWQ, "group_size": 64})
        found = layers(gemm)[UP]
        assert found.encoding.id == "awq"
        canonical = found.encoding.unpack(found)
        zeros = np.zeros((64, 16), np.uint32)  # 4 groups; calculate_zeros_width: 2 words
        zeros[:, :4] = canonical.zeros
        scales = np.zeros((64, 16), np.float16)
        scales[:, :4] = canonical.scales

        def words(codes: np.ndarray) -> np.ndarray:
            shifts = 4 * np.arange(8, dtype=np.uint32)
            eights = codes.astype(np.uint32).reshape(codes.shape[0], -1, 8)
            return (eights << shifts).sum(axis=2, dtype=np.uint32).view(np.int32)

        gemv = folder(
            plain(f"{UP}.qweight", "i32", words(canonical.codes)),
            plain(f"{UP}.qzeros", "i32", words(zeros)),
            plain(f"{UP}.scales", "f16", scales),
            config={**AWQ, "group_size": 64, "version": "gemv"}, name="gemv",
        )  # fmt: skip
        assert layers(gemv)[UP].encoding.id == "awq.gemv"
        assert is_sound(gemv)
        assert np.array_equal(weights(gemv), weights(gemm))

    def test_g5_a_head_that_was_quantized_all_the_same(self) -> None:
        model = folder(
            layer("awq", group=32),
            layer("awq", "lm_head", group=32, seed=1),
            config={**AWQ, "modules_to_not_convert": ["lm_head"]},
        )
        (finding,) = serious(model)
        assert (finding.code, finding.data["layer"]) == ("Q108", "lm_head")

    def test_g6_groups_of_64(self) -> None:
        parts = layer("awq", shape=(16, 256), group=64)
        scales = np.repeat([[1], [2], [4], [8]], 16, axis=1).astype(np.float16)
        config = {**AWQ, "group_size": 64}
        model = folder({**parts, **plain(f"{UP}.scales", "f16", scales)}, config=config)
        found = layers(model)[UP]
        centred = found.encoding.unpack(found).centred()
        assert np.array_equal(weights(model), centred * np.repeat([1, 2, 4, 8], 64))
        assert found.group == 64


class TestH:
    def test_h1_a_tower_that_is_excluded_and_packed(self) -> None:
        tower = "visual.blocks.0.mlp.up_proj"
        model = folder(
            layer("awq", group=32),
            layer("awq", tower, group=32, seed=1),
            config={**AWQ, "modules_to_not_convert": ["visual"]},
        )
        (finding,) = serious(model)
        assert (finding.code, finding.data["layer"]) == ("Q108", tower)

    @pytest.mark.parametrize("label", ["metadata", "name"])
    def test_h5_another_type_than_was_planned(self, label: str) -> None:
        names = [f"blk.0.{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "ffn_up")]
        size = by_id("ggml.q5_k").block_bytes
        tensors = [(name, 13, (256, 2), bytes(2 * size)) for name in names]
        metadata = {"general.architecture": "llama"}
        if label == "metadata":
            metadata["general.file_type"] = 15  # type: ignore[assignment]
        path = Path("m.gguf" if label == "metadata" else "tiny-Q4_K_M.gguf")
        path.write_bytes(write_gguf(metadata, tensors))
        (finding,) = serious(path)
        assert (finding.code, finding.data["label"], finding.data["most"]) == (
            "Q106",
            "Q4_K_M",
            "Q5_K",
        )

    def test_h6_mx_with_a_scale_of_nvfp4(self) -> None:
        config = pack_config(
            format="mxfp4-pack-quantized", type="float", scale_dtype="torch.float8_e4m3fn"
        )
        model = folder(layer("mxfp4.compressed"), config=config)
        (finding,) = serious(model)
        assert finding.code == "Q106"
        assert "MX formats have E8M0 scales" in finding.message


class TestJ:
    def test_j2_two_of_four_in_4_bits(self) -> None:
        rng = np.random.default_rng(0)
        codes = rng.integers(1, 8, (32, 64)) * rng.choice([-1, 1], (32, 64))
        codes.reshape(32, 16, 4)[..., 2:] = 0
        stored = (codes + 8).astype(np.uint32).reshape(32, 8, 8)
        packed = (stored << (4 * np.arange(8, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
        model = folder(
            plain(f"{UP}.weight_packed", "i32", packed.view(np.int32)),
            plain(f"{UP}.weight_scale", "f16", np.full((32, 1), 0.01, np.float16)),
            plain(f"{UP}.weight_shape", "i64", np.array([32, 64])),
            config=pack_config(strategy="channel", group_size=None),
        )
        found = weights(model)
        assert np.array_equal(found == 0, codes == 0)
        assert np.array_equal(found, codes * np.float32(np.float16(0.01)))
        assert is_sound(model)

    def test_j4_experts_one_by_one_and_fused(self) -> None:
        single = layer("nvfp4.compressed", f"{MLP}.experts.0.up_proj")
        other = layer("nvfp4.compressed", f"{MLP}.experts.1.up_proj", seed=1)
        one_by_one = folder(single, other)
        assert is_sound(one_by_one)
        joined = f"{MLP}.experts.up_proj"
        fused = folder(
            {
                f"{joined}.{part}": (
                    encoding,
                    (2, *shape) if len(shape) > 1 else (2,),
                    np.concatenate([raw, other[f"{MLP}.experts.1.up_proj.{part}"][2]]),
                )
                for name, (encoding, shape, raw) in single.items()
                for part in [name.rpartition(".")[2]]
            },
            name="fused",
        )
        assert is_sound(fused)
        assert layers(fused)[joined].shape == (2, 32, 64)
        both = [weights(one_by_one, f"{MLP}.experts.{number}.up_proj") for number in (0, 1)]
        assert np.array_equal(weights(fused, joined), np.concatenate(both))

    def test_j4_names_that_no_family_has_are_listed(self) -> None:
        codes = np.zeros((2, 32, 32), np.uint8)
        model = folder(
            plain(f"{MLP}.experts.gate_up_proj", "u8", codes),
            plain(f"{MLP}.experts.gate_up_proj_scale", "u8", codes[..., :2]),
            config={"quant_method": "quark"},
        )
        result = checked(model)
        assert not result.complete
        unread = {skipped.name for skipped in result.facts.unread}
        assert f"{MLP}.experts.gate_up_proj" in unread

    def test_j6_one_scale_for_a_joined_matrix(self) -> None:
        joined = "model.layers.0.self_attn.qkv_proj"
        model = folder(
            layer("fp8", joined, (96, 64)),
            config={"quant_method": "fp8", "activation_scheme": "dynamic"},
        )
        assert is_sound(model)
        assert weights(model, joined).shape == (96, 64)

    def test_j7_experts_that_were_never_calibrated(self) -> None:
        names = [f"{MLP}.experts.{number}.up_proj" for number in range(8)]
        left = names[2:5]
        parts = [
            plain(f"{name}.weight", "f16", np.full((32, 64), 0.5, np.float16))
            if name in left
            else layer("gptq", name, group=32, symmetric=True, seed=at)
            for at, name in enumerate(names)
        ]
        router = plain(f"{MLP}.gate.weight", "f16", np.full((8, 64), 0.5, np.float16))
        (finding,) = serious(folder(*parts, router, config=GPTQ))
        assert (finding.code, finding.count) == ("Q106", 3)
        assert finding.data["layers"] == left


NVFP4 = pack_config(
    format="nvfp4-pack-quantized", type="float", strategy="tensor_group", group_size=16
)


class TestK:
    def test_k1_a_divisor_that_multiplies(self) -> None:
        weight = layer("nvfp4.modelopt", overall=1 / 2688, parts={"weight_scale_2": 2688.0})
        (finding,) = serious(folder(weight))
        assert (finding.code, finding.severity) == ("Q106", Severity.ERROR)
        assert finding.data["largest"] / finding.data["inverted"] == pytest.approx(2688**2)
        sound = layer("nvfp4.modelopt", overall=1 / 2688)
        assert is_sound(folder(sound, name="sound"))

    def test_k2_an_expert_without_its_input_scale(self) -> None:
        def experts(missing: dict[str, float]) -> list[Tensors]:
            held: list[dict[str, float]] = [{"input_scale": 0.01}, missing, {"input_scale": 0.01}]
            return [
                layer("nvfp4.modelopt", f"{MLP}.experts.{at}.up_proj", seed=at, **{"with": scale})
                for at, scale in enumerate(held)
            ]

        (finding,) = serious(folder(*experts({})))
        assert (finding.code, finding.severity) == ("Q103", Severity.ERROR)
        assert finding.data["layers"] == [f"{MLP}.experts.1.up_proj"]
        (finding,) = serious(folder(*experts({"input_scale": 0.0}), name="zero"))
        assert (finding.code, finding.severity) == ("Q202", Severity.ERROR)
        assert finding.field == "input_scale"

    def test_k3_one_scale_serves_both_halves(self) -> None:
        joined = f"{MLP}.gate_up_proj"
        model = folder(layer("nvfp4.modelopt", joined, (64, 64)))
        assert is_sound(model)
        found = layers(model)[joined]
        assert found.parts["weight_scale_2"].size == 1
        assert np.abs(weights(model, joined)).reshape(2, -1).max(axis=1).min() > 0.01

    def test_k4_k12_no_scale_of_activations(self) -> None:
        four = {"num_bits": 4, "type": "float", "dynamic": "local"}
        both = json.loads(json.dumps(NVFP4))
        both["config_groups"]["group_0"]["input_activations"] = four
        (finding,) = serious(folder(layer("nvfp4.compressed"), config=both))
        assert (finding.code, finding.severity) == ("Q103", Severity.ERROR)
        assert finding.data["part"] == "input_global_scale"
        weights_only = json.loads(json.dumps(NVFP4))
        weights_only["config_groups"]["group_0"]["input_activations"] = None
        assert is_sound(folder(layer("nvfp4.compressed"), config=weights_only, name="w4a16"))

    @pytest.mark.parametrize(("algo", "sound"), [("NVFP4", False), ("W4A16_NVFP4", True)])
    def test_k12_modelopt(self, algo: str, sound: bool) -> None:
        config = {"quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"]}
        model = folder(layer("nvfp4.modelopt"), config=config)
        assert codes(model) == ([] if sound else ["Q103"])

    def test_k6_split_halves(self) -> None:
        order = np.concatenate([np.arange(16), np.arange(16)]).astype(np.uint8)
        block = np.concatenate([[np.uint8(127)], order[:16] | (order[16:] << 4)])
        values = by_id("ggml.mxfp4").dequantize(block.astype(np.uint8))
        half = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
        wanted = [*half, *(-value for value in half)]
        assert values.tolist() == [*wanted, *wanted]

    @pytest.mark.parametrize(
        ("exponent", "code", "value"), [(127, 7, 6.0), (128, 6, 8.0), (128, 5, 6.0)]
    )
    def test_k7_what_each_rule_makes_of_7(self, exponent: int, code: int, value: float) -> None:
        pairs = np.full((1, 16), code | code << 4, np.uint8)
        model = folder(
            plain(f"{UP}.weight_packed", "u8", pairs),
            plain(f"{UP}.weight_scale", "u8", np.array([[exponent]], np.uint8)),
        )
        assert (weights(model) == value).all()
        assert abs(value / 7 - 1) == pytest.approx(1 / 7), "14 % either way"

    def test_k8_the_codes_that_are_nan(self) -> None:
        stored = np.full((1, 32), 0x38, np.uint8)
        stored[0, :3] = [0x7E, 0x7F, 0xFF]
        model = folder(
            plain(f"{UP}.weight", "f8_e4m3", stored),
            plain(f"{UP}.weight_scale", "f32", np.ones(1, np.float32)),
        )
        values = weights(model)[0, :3]
        assert values[0] == 448
        assert np.isnan(values[1:]).all()
        (finding,) = serious(model)
        assert (finding.code, finding.severity, finding.count) == ("Q303", Severity.ERROR, 2)

    def test_k9_an_exponent_is_no_number(self) -> None:
        model = folder(
            plain(f"{UP}.weight_packed", "u8", np.full((4, 16), 0x22, np.uint8)),
            plain(f"{UP}.weight_scale", "u8", np.full((4, 1), 127, np.uint8)),
        )
        assert (weights(model) == 1).all()


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


class TestL:
    @pytest.mark.parametrize("config", [FP8, None])
    def test_l1_a_weight_without_its_scale(self, config: dict[str, Any] | None) -> None:
        gate = f"{MLP}.gate_proj"
        model = folder(
            layer("fp8"), layer("fp8", gate, seed=1, without=["weight_scale"]), config=config
        )
        found = serious(model)
        assert [(each.code, each.severity) for each in found] == [("Q103", Severity.ERROR)]
        assert found[0].data["layer"] == gate

    def test_l1_declared_as_plain_float(self) -> None:
        gate = f"{MLP}.gate_proj"
        model = folder(
            layer("fp8"),
            layer("fp8", gate, seed=1, without=["weight_scale"]),
            config={**FP8, "modules_to_not_convert": [gate]},
        )
        assert codes(model) == ["Q103"]

    def test_l4_byte_0x80(self) -> None:
        stored = np.full((1, 32), 0x80, np.uint8)
        ours = by_id("f8_e4m3").dequantize(stored.reshape(-1))
        assert (ours == 0).all()
        assert np.signbit(ours).all()
        assert np.isnan(stored.view(ml_dtypes.float8_e4m3fnuz).astype(np.float32)).all()

    def test_l6_the_top_binade(self) -> None:
        wanted = np.array([[256, 300, 400, 448] * 8], np.float32)
        stored = wanted.astype(ml_dtypes.float8_e4m3fn)
        model = folder(
            plain(f"{UP}.weight", "f8_e4m3", stored.view(np.uint8)),
            plain(f"{UP}.weight_scale", "f32", np.ones(1, np.float32)),
        )
        found = weights(model)
        assert np.array_equal(found, stored.astype(np.float32))
        assert np.abs(found / wanted - 1).max() <= 1 / 16
        assert len(set(found[0].tolist())) == 4

    @pytest.mark.parametrize("saturating", [True, False])
    def test_l7_what_overflow_leaves(self, saturating: bool) -> None:
        wanted = np.array([[464, 465, 1000, 1] * 8], np.float32)
        limited = wanted.clip(max=448) if saturating else wanted
        stored = limited.astype(ml_dtypes.float8_e4m3fn)
        model = folder(
            plain(f"{UP}.weight", "f8_e4m3", stored.view(np.uint8)),
            plain(f"{UP}.weight_scale", "f32", np.ones(1, np.float32)),
        )
        found = weights(model)[0, :3]
        if saturating:
            assert found.tolist() == [448, 448, 448]
            assert is_sound(model)
        else:
            assert found[0] == 448
            assert np.isnan(found[1:]).all()
            assert codes(model) == ["Q303"]

    def test_l8_one_scale_for_unlike_halves(self) -> None:
        rng = np.random.default_rng(0)
        wanted = rng.standard_normal((32, 64)).astype(np.float32)
        wanted[:16] *= 100
        wanted[16:] *= 1e-3

        def loss(scales: np.ndarray, name: str) -> float:
            stored = (wanted / scales).astype(ml_dtypes.float8_e4m3fn)
            model = folder(
                plain(f"{UP}.weight", "f8_e4m3", stored.view(np.uint8)),
                plain(f"{UP}.weight_scale", "f32", scales.astype(np.float32)),
                name=name,
            )
            small = slice(16, None)
            error = weights(model)[small] - wanted[small]
            return float(np.linalg.norm(error) / np.linalg.norm(wanted[small]))

        largest = np.abs(wanted).max(axis=1, keepdims=True) / 448
        assert loss(largest.max(keepdims=True).reshape(1), "tensor") > 0.3
        assert loss(largest, "rows") < 0.05

    def test_l9_the_scale_is_in_another_shard(self) -> None:
        parts = layer("fp8")
        model = folder(parts, config=FP8, shards=lambda name: 2 if "scale" in name else 1)
        whole = folder(parts, config=FP8, name="whole")
        assert is_sound(model)
        assert np.array_equal(weights(model), weights(whole))


class TestS:
    def test_s2_q4_1(self) -> None:
        halves = np.array([0.5, -2], np.float16).view(np.uint8)
        order = np.concatenate([np.arange(16), np.arange(16)]).astype(np.uint8)
        block = np.concatenate([halves, order[:16] | (order[16:] << 4)])
        wanted = np.arange(16) * 0.5 - 2
        assert by_id("ggml.q4_1").dequantize(block).tolist() == [*wanted, *wanted]

    def test_s4_bf16_is_no_bytes_of_twice_the_width(self) -> None:
        wanted = np.arange(32, dtype=np.float32).reshape(4, 8)
        bits = (wanted.view(np.uint32) >> 16).astype("<u2")
        path = Path("m.gguf")
        path.write_bytes(
            write_gguf(
                {"general.architecture": "llama"}, [("a.weight", 30, (8, 4), bits.tobytes())]
            )
        )
        container = open_with_encodings(path)
        (stored,) = container.tensors
        assert (stored.shape, stored.nbytes) == ((4, 8), 64)
        assert np.array_equal(by_id("bf16").dequantize(stored.raw()).reshape(4, 8), wanted)
        assert is_sound(path)

    def test_s5_rows_and_blocks(self) -> None:
        path = Path("m.gguf")
        encoding = by_id("ggml.q4_0")
        data = bytes(4 * encoding.block_bytes)
        tensors = [("a.weight", 2, (64, 2), data)]
        path.write_bytes(write_gguf({"general.architecture": "llama"}, tensors))
        (tensor,) = checked(path).facts.tensors
        assert tensor.stats.units == 4
        assert encoding.dequantize(np.frombuffer(data, np.uint8)).size == tensor.stored.size

    @pytest.mark.parametrize(("shape", "sound"), [([8, 4, 2, 2], True), ([8, 8], False)])
    def test_s6_the_shape_is_in_the_metadata(self, shape: list[int], sound: bool) -> None:
        path = Path("m.gguf")
        values = np.linspace(1, 2, 128, dtype=np.float32)
        metadata = {"general.architecture": "flux", "comfy.gguf.orig_shape.a.weight": shape}
        tensors = [("a.weight", 0, (64, 2), values.tobytes())]
        path.write_bytes(write_gguf(metadata, tensors))
        assert codes(path) == ([] if sound else ["Q110"])


def test_a_report_of_the_command_line_names_code_and_layer() -> None:
    """What the tests above ask of the library, once through the program."""
    model = folder(layer("awq", "lm_head", group=32), config={**AWQ, "modules_to_not_convert":
                                                             ["lm_head"]})  # fmt: skip
    result = CliRunner().invoke(cli, ["check", str(model), "-f", "json"], prog_name="qassay")
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["code"], finding["data"]["layer"]) == ("Q108", "lm_head")
    assert result.exit_code == 0, "a warning alone does not fail"

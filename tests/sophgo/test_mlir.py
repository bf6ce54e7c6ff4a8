"""The reader of `.mlir` text and its npz: every field, every stage, and hostile text."""

from __future__ import annotations

import random
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qassay.core.errors import InputError
from qassay.runtimes.sophgo import mlir
from qassay.runtimes.sophgo.mlir import across, parse_mlir, read_mlir
from qassay.runtimes.sophgo.mlir_text import MlirError, TensorType, tensor_type, unquoted
from qassay.runtimes.sophgo.weight_file import WeightFile, weights_of

W4 = "bm1684x-1.28.1/w4_n128_k256_g64"


def test_top(tpu: Any) -> None:
    module = tpu(W4).mlir("")
    assert (module.name, module.chip, module.mode) == ("w4_n128_k256_g64", "ALL", "")
    assert (module.state, module.platform) == ("TOP_F32", "LLM")
    assert module.weight_file == "w4_n128_k256_g64_w.npz"
    (one,) = module.linears
    assert (one.op, one.name, one.line, one.function) == ("top.A16MatMul", "linear0", 10, "main")
    assert (one.n, one.k, one.weight_bits, one.q_group_size) == (128, 256, 4, 64)
    assert one.w_transpose
    assert one.sign is None
    assert one.input is not None
    assert (one.input.name, one.input.is_weight) == ("in0", False)
    assert (one.weight.name, str(one.weight.type)) == ("qweight", "128x128xui8")
    assert (one.scale.name, str(one.scale.type)) == ("scales", "128x4xf32")
    assert (one.zero_point.name, str(one.zero_point.type)) == ("qzeros", "128x4xui8")
    assert (one.bias.name, str(one.bias.type)) == ("bias", "1x1x128xf32")
    assert str(one.output) == "1x4x128xf32"
    assert one.lanes is None


@pytest.mark.parametrize(
    ("suffix", "state", "line", "scale", "zero", "lanes"),
    [
        ("tpu", "TPU_LOWERED", 10, "scales_bf16 128x4xbf16", "linear0_zp 128x4xui8", None),
        ("pre", "TPU_LOWERED", 11, "scales_bf16 128x4xbf16", "linear0_zp 128x4xui8", None),
        (
            "reorder", "TPU_REORDERED", 11,
            "linear0_reordered 64x2x4xbf16", "linear0_1_reordered 64x2x4xui8", 64,
        ),
        (
            "final", "TPU_ADDRESSED", 16,
            "linear0_reordered 64x2x4xbf16", "linear0_1_reordered 64x2x4xui8", 64,
        ),
    ],
)  # fmt: skip
def test_stages(
    tpu: Any, suffix: str, state: str, line: int, scale: str, zero: str, lanes: int | None
) -> None:
    case = tpu(W4)
    module = case.mlir(f"_bm1684x_w4bf16_{suffix}")
    assert (module.state, module.chip, module.mode) == (state, "bm1684x", "W4BF16")
    assert (module.q_group_size, module.q_symmetric) == (64, False)
    one = module.named("linear0")
    assert one is not None
    assert (one.op, one.line, one.n, one.k) == ("tpu.A16MatMul", line, 128, 256)
    assert (one.weight_bits, one.q_group_size, one.w_transpose, one.sign) == (4, 64, True, True)
    assert (one.dq_type, one.lanes) == ("NONE", lanes)
    assert f"{one.scale.name} {one.scale.type}" == scale
    assert f"{one.zero_point.name} {one.zero_point.type}" == zero
    assert f"{one.weight.name} {one.weight.type}" == "linear0_weight 128x128xui8"
    assert f"{one.bias.name} {one.bias.type}" == "bias_bf16 1x1x128xbf16"
    stored = case.stored(f"_bm1684x_w4bf16_{suffix}")
    assert stored[one.scale.name].dtype == np.uint16
    assert stored[one.scale.name].shape == one.scale.type.shape
    assert stored[one.zero_point.name].dtype == np.uint8


def test_before_and_after(tpu: Any) -> None:
    case = tpu(W4)
    ((before, after),) = across(
        case.mlir("_bm1684x_w4bf16_pre"), case.mlir("_bm1684x_w4bf16_reorder")
    )
    assert str(before.scale.type) == "128x4xbf16"
    assert after is not None
    assert str(after.scale.type) == "64x2x4xbf16"
    fallen = tpu("bm1684x-1.30.2/w4_n16_k256_g64")
    ((before, after),) = across(
        fallen.mlir("_bm1684x_w4bf16_tpu"), fallen.mlir("_bm1684x_w4bf16_tpuopt")
    )
    assert before.quantized
    assert after is not None
    assert not after.quantized


def test_a_matmul_inside_a_layer_group(tpu: Any) -> None:
    for chip, bias in (
        ("bm1684x", "bias_bf16 1x1x16xbf16"),
        ("bm1688", "bias_bf16_f32 1x1x16xf32"),
    ):
        module = tpu(f"{chip}-1.30.2/w4_n16_k256_g64").mlir(f"_{chip}_w4bf16_final")
        (one,) = module.linears
        assert (one.op, one.function, one.name) == ("tpu.MatMul", "subfunc_0", "linear0")
        assert (one.n, one.k, one.weight_bits, one.lanes) == (16, 256, None, None)
        # found through tpu.Load, back to the constant
        assert f"{one.weight.name} {one.weight.type}" == "linear0_dequant_bf16 1x256x16xbf16"
        assert one.weight.is_weight
        assert f"{one.bias.name} {one.bias.type}" == bias
        assert module.chip == chip


def test_every_fixture_reads(tpu_folder: Path) -> None:
    found = sorted(tpu_folder.rglob("*.mlir"))
    assert len(found) > 25
    for path in found:
        assert [one.name for one in read_mlir(path).linears] == ["linear0"]


def text_of(tpu: Any, suffix: str = "_bm1684x_w4bf16_reorder") -> str:
    case = tpu(W4)
    return (case.folder / f"{case.name}{suffix}.mlir").read_text()


def test_cut_off_anywhere(tpu: Any) -> None:
    text = text_of(tpu)
    end = text.rindex("} loc(#loc)\n#loc1")
    for at in range(0, end, 7):
        with pytest.raises(MlirError):
            parse_mlir(text[:at])
    lines = text.splitlines()
    assert parse_mlir("\n".join(lines[: lines.index('#loc1 = loc("in0")')])).linears[0].name == ""


def test_a_thousand_mutations_raise_one_kind_of_error(tpu: Any) -> None:
    rng = random.Random(7)
    texts = [text_of(tpu), text_of(tpu, "_bm1684x_w4bf16_final"), text_of(tpu, "")]
    marks = '"%#()[]{}<>,:=-x0\\ \n\0'
    read = 0
    for _ in range(1500):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            how = rng.randrange(3)
            if how == 0:
                text = text[:at] + rng.choice(marks) + text[at + 1 :]
            elif how == 1:
                text = text[:at] + text[at + rng.randint(1, 30) :]
            else:
                text = text[:at] + rng.choice(marks) * rng.randint(1, 50) + text[at:]
        try:
            parse_mlir(text)
            read += 1
        except MlirError:
            pass
    assert 0 < read < 1500


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("tensor<128x128xui8>", "tensor<128x127xui8>", "expected a weight of 128x128"),
        ("tensor<1x4x256xbf16>", "tensor<1x4x250xbf16>", "disagree"),
        ("weight_bits = 4", "weight_bits = 3", "weight_bits"),
        ("weight_bits = 4", "weight_bits = 8", "disagree"),
        ("(%1, %2, %4, %5, %3)", "(%1, %2, %4, %5)", "another number of operands"),
        ("module attributes", "modul attributes", ""),
        ("tensor<128x128xui8>", "tensor<" + "9x" * 40 + "ui8>", "no such tensor"),
        ("tensor<128x128xui8>", "tensor<" + "9" * 40 + "xui8>", "no such tensor"),
    ],
)
def test_text_that_contradicts_itself(tpu: Any, old: str, new: str, says: str) -> None:
    text = text_of(tpu)
    if not says:
        assert parse_mlir(text).linears
        return
    assert old in text
    with pytest.raises(MlirError, match=re.escape(says)):
        parse_mlir(text.replace(old, new))


def test_hostile_lines_cost_little(tpu: Any) -> None:
    heads = [
        '%1 = "tpu.A16MatMul"(',
        '"' + '\\"',
        "module @",
        "module @a attributes {",
        "#loc1 = loc(",
    ]
    fills = ["(", "[{<", "%a, ", '\\"', '"', "x", "1x", "tensor<", "a = [", " "]
    begin = time.monotonic()
    for head in heads:
        for fill in fills:
            with pytest.raises(MlirError):
                parse_mlir(head + fill * (500_000 // len(fill)))
    assert time.monotonic() - begin < 30
    with pytest.raises(MlirError, match="too long"):
        parse_mlir("x" * (1 << 21))
    with pytest.raises(MlirError, match="too many lines"):
        parse_mlir("\n" * (1 << 22))


def test_locations(tpu: Any) -> None:
    text = text_of(tpu)
    for loc, name in [
        ('loc("model.layers.0.\\C3\\A9\\"x")', 'model.layers.0.é"x'),
        ('loc(fused["a", "b"])', "a"),
        ("loc(fused[#loc8, #loc1])", "linear0_f32"),
        ("loc(#loc7)", ""),
        ("loc(unknown)", ""),
        ('loc("a"(#loc1))', "a"),
    ]:
        changed = text.replace('#loc7 = loc("linear0")', f"#loc7 = {loc}")
        assert parse_mlir(changed).linears[0].name == name


def test_a_long_chain_of_locations_is_followed_once(
    tpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # #loc7 leads to #loc7000, which leads to #loc7001, ...; more names than are followed
    text = text_of(tpu)
    chain = "".join(f"#loc{n} = loc(#loc{n + 1})\n" for n in range(7000, 7005))
    chain += '#loc7005 = loc("at the end")\n'
    changed = text.replace('#loc7 = loc("linear0")', f"#loc7 = loc(#loc7000)\n{chain}")
    assert parse_mlir(changed).linears[0].name == "at the end"
    # a location that many operations share, which may be long, is read once
    line = next(one for one in text.splitlines() if "loc(#loc7)" in one)
    read: list[str] = []

    def counted(quoted: str, number: int) -> str:
        read.append(quoted)
        return unquoted(quoted, number)

    monkeypatch.setattr(mlir, "unquoted", counted)
    parse_mlir(text.replace(line, "\n".join([line] * 50)))
    assert read.count('"linear0"') == 1


def test_types() -> None:
    for text, dtype, shape in [
        ("tensor<1x4x256xbf16, 4295000064 : i64>", "bf16", (1, 4, 256)),
        ("tensor<f32>", "f32", ()),
        ("tensor<?x4xf32>", "f32", None),
        ("tensor<*xf32>", "f32", None),
        ("none", "none", None),
        ("tensor<4x!quant.uniform<i8:f32, 1.0>>", "!quant.uniform<i8:f32, 1.0>", (4,)),
        ("i32", "i32", None),
    ]:
        assert tensor_type(text, 1) == TensorType(dtype, shape)


def test_a_type_that_lies_about_its_array(tpu: Any) -> None:
    case = tpu(W4)
    module = case.mlir("_bm1684x_w4bf16_reorder")
    name = "linear0_reordered"
    file = case.folder / module.weight_file
    for kind, words in [
        (TensorType("bf16", (64, 2, 5)), ("64x2x5xbf16: 640 elements", "found 512 elements")),
        (TensorType("f32", (64, 2, 4)), ("512 elements of 4 bytes", "512 elements of 2 bytes")),
        (TensorType("bf16", (1 << 40, 1 << 40)), ("found 512 elements",)),
        (TensorType("bf16", None), ("no type is known",)),
        (TensorType("f4", (512,)), ("no type is known",)),
    ]:
        with WeightFile(file, {name: kind}) as weights, pytest.raises(InputError) as caught:
            weights.read(name)
        for word in words:
            assert word in str(caught.value)
    with WeightFile(file, {"gone": TensorType("f32", (1,))}) as weights:  # noqa: SIM117
        with pytest.raises(InputError, match="no array gone"):
            weights.read("gone")


def test_damaged_weight_files(tpu: Any, tmp_path: Path) -> None:
    case = tpu(W4)
    module = case.mlir("_bm1684x_w4bf16_reorder")
    whole = (case.folder / module.weight_file).read_bytes()
    target = tmp_path / module.weight_file
    rng = random.Random(3)
    for _ in range(300):
        data = bytearray(whole)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data))]
        else:
            for _ in range(rng.randint(1, 8)):
                at = rng.choice([rng.randrange(len(data)), len(data) - 1 - rng.randrange(300)])
                data[at] = rng.randrange(256)
        target.write_bytes(data)
        try:
            with weights_of(module, tmp_path) as weights:
                for name in module.weights:
                    weights.read(name)
        except InputError:
            pass
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("linear0_reordered.npy", b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O'")
    with weights_of(module, tmp_path) as weights, pytest.raises(InputError):
        weights.read("linear0_reordered")
    np.savez(target, linear0_reordered=np.array([{}], dtype=object))
    with weights_of(module, tmp_path) as weights, pytest.raises(InputError):
        weights.read("linear0_reordered")


def test_weight_files_elsewhere_are_not_opened(tpu: Any, tmp_path: Path) -> None:
    text = text_of(tpu)
    name = "w4_n128_k256_g64_tpu_reordered_bm1684x_w4bf16_weight.npz"
    for other in ("/etc/passwd", "../x.npz", "..", "a\\\\b.npz", ""):
        with pytest.raises(InputError, match="plain file name"):
            weights_of(parse_mlir(text.replace(name, other)), tmp_path)
    with pytest.raises(InputError):
        weights_of(parse_mlir(text), tmp_path)
    with pytest.raises(InputError):
        read_mlir(tmp_path)
    with pytest.raises(InputError):
        read_mlir(tmp_path / "gone.mlir")

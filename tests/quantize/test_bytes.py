"""The bytes written: those of the C library, in a file that other readers accept."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from qassay.encodings.registry import by_id
from qassay.run.model import Model
from qassay.run.quantize_plan import gguf_number
from qassay.runtimes.registry import all_engines
from qassay.testing.safetensors_writer import write_safetensors

libgguf = pytest.importorskip("libgguf")

GGML = all_engines()["ggml"]
TARGETS = sorted(name for name in GGML.routes if gguf_number(by_id(name)) is not None)
RUN_BY_LIBGGUF = [name for name in TARGETS if name not in ("f16", "bf16")]


def test_the_types_that_have_to_be_there():
    wanted = ["f16", "bf16", "ggml.q4_0", "ggml.q4_1", "ggml.q5_0", "ggml.q5_1", "ggml.q8_0"]
    assert set(wanted) <= set(TARGETS)


def theirs(name: str, values: np.ndarray) -> np.ndarray:
    """Return the bytes that other programs make of float32 values `[n, K]`."""
    if name == "f16":
        return values.astype("<f2").view(np.uint8)
    if name == "bf16":
        return gguf.quantize(values, gguf.GGMLQuantizationType.BF16)
    raw = libgguf.quantize_rows_raw(gguf_number(by_id(name)), values, *values.shape)
    return np.frombuffer(raw, np.uint8).reshape(values.shape[0], -1)


@pytest.mark.parametrize("kernels", ["reference", "fast"])
@pytest.mark.parametrize("name", TARGETS)
def test_equal_to_libgguf(run, floats, monkeypatch, name, kernels):
    monkeypatch.setenv("QASSAY_KERNELS", kernels)
    run(floats, "out.gguf", "--to", name)
    before = Model.open(floats)
    reader = gguf.GGUFReader("out.gguf")
    made = {tensor.name: tensor for tensor in reader.tensors}
    assert list(made) == list(before.tensors)
    block = by_id(name).block
    compared = 0
    for each, old in before.tensors.items():
        if len(old.shape) < 2 or old.shape[-1] % block or each == "position_ids":
            continue
        values = old.dequantize().reshape(-1, old.shape[-1])
        assert made[each].tensor_type == gguf_number(by_id(name))
        assert tuple(made[each].shape)[::-1] == old.shape
        stored = np.ascontiguousarray(made[each].data).view(np.uint8)
        assert np.array_equal(stored.reshape(len(values), -1), theirs(name, values)), each
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize("name", RUN_BY_LIBGGUF)
def test_decodes_as_libgguf_decodes_the_same_bytes(run, floats, name):
    run(floats, "out.gguf", "--to", name)
    with Model.open("out.gguf") as model:
        for tensor in model.tensors.values():
            if tensor.encoding != name:
                continue
            rows = tensor.shape[-1]
            raw = libgguf.dequantize_rows_raw(
                gguf_number(by_id(name)),
                tensor.raw().tobytes(),
                tensor.dequantize().size // rows,
                rows,
            )
            decoded = np.frombuffer(raw, np.float32)
            assert np.array_equal(decoded, tensor.dequantize().reshape(-1))


@pytest.mark.parametrize(
    ("engine", "name"),
    [(engine, name) for engine, each in all_engines().items() for name in sorted(each.routes)],
)
def test_every_engine_writes_its_own_bytes(run, floats, engine, name):
    run(floats, "out.gguf", "--to", name, "--engine", engine)
    with Model.open(floats) as old, Model.open("out.gguf") as new:
        values = old.tensors["up.weight"].dequantize()
        expected = all_engines()[engine].quantize(values, name, kernels="reference")
        assert new.tensors["up.weight"].encoding == name
        assert np.array_equal(new.tensors["up.weight"].raw(), expected.reshape(-1))
        assert new.metadata["qassay.engine"] == engine


@pytest.mark.parametrize(
    ("to", "narrow"),
    [
        ("Q4_K", "ggml.q5_0"),
        ("Q5_K", "ggml.q5_1"),
        ("Q6_K", "ggml.q8_0"),
        ("Q2_K", "ggml.q4_0"),
        ("Q3_K", "ggml.q4_0"),
        ("Q8_0", "ggml.q8_0"),
    ],
)
def test_rows_that_do_not_fit_fall_back(document, floats, to, narrow):
    made = document(floats, "out.gguf", "--to", to)["result"]["quantize"]
    tensors = {each["name"]: each for each in made["tensors"]}
    assert tensors["up.weight"]["to"] == f"ggml.{to.lower()}"
    assert tensors["up.weight"]["reason"] == ""
    assert tensors["narrow.weight"]["to"] == narrow
    assert ("rows of 96" in tensors["narrow.weight"]["reason"]) == (to != "Q8_0")
    assert tensors["odd.weight"]["to"] == "f16"
    assert "rows of 33" in tensors["odd.weight"]["reason"]
    assert tensors["norm.weight"]["to"] == "f32"
    assert tensors["scalar"]["to"] == "f32"
    assert tensors["position_ids"]["to"] == "i64"
    assert tensors["position_ids"]["rmse"] is None
    assert made["totals"]["types"]["i64"] == {"tensors": 1, "weights": 8, "bytes": 64}


def test_text_says_which_types_were_not_asked_for(run, floats):
    text = " ".join(run(floats, "out.gguf", "--to", "Q4_K").stdout.split())
    assert "1 tensor as ggml.q5_0 (rows of 96 are no whole number of 256-weight blocks)" in text
    assert "1 tensor as f16 (rows of 33" in text


def test_what_is_not_quantized_keeps_its_values(run, floats, gguf_floats):
    run(floats, "one.gguf", "--to", "Q4_0")
    run(gguf_floats, "two.gguf", "--to", "Q4_0")
    for before, after, kinds in (
        (floats, "one.gguf", {"norm.weight": "f32", "scalar": "f32", "position_ids": "i64"}),
        (gguf_floats, "two.gguf", {"blk.0.attn_norm.weight": "f32", "blk.0.bias": "f16"}),
    ):
        with Model.open(before) as old, Model.open(after) as new:
            for name, kind in kinds.items():
                assert new.tensors[name].encoding == kind
                same = old.tensors[name].dequantize().reshape(-1)
                assert np.array_equal(new.tensors[name].dequantize().reshape(-1), same)


def test_patterns_name_types_and_the_last_one_counts(document, floats):
    options = ["--type-for", "*.weight=Q8_0", "--type-for", "down.*=F32", "--type-for", "norm*=f16"]
    made = document(floats, "out.gguf", "--to", "Q4_0", *options)["result"]["quantize"]
    kinds = {each["name"]: each["to"] for each in made["tensors"]}
    assert kinds["up.weight"] == "ggml.q8_0"
    assert kinds["down.weight"] == "f32"
    assert kinds["norm.weight"] == "f16"
    assert made["type_for"][1] == {"pattern": "down.*", "to": "f32"}


def test_long_rows_are_cut_between_blocks(run, one_tensor):
    values = np.random.default_rng(3).standard_normal((2, 70_016)).astype(np.float32)
    run(one_tensor(values), "out.gguf", "--to", "Q4_0")
    with Model.open("out.gguf") as new:
        stored = new.tensors["a.weight"].raw()
        assert np.array_equal(stored, theirs("ggml.q4_0", values).reshape(-1))


@pytest.mark.parametrize("to", ["Q8_0", "Q4_K", "F16"])
def test_same_bytes_and_report_for_any_number_of_jobs(run, weights, tmp_path, to):
    tensors = [
        (f"{n}.weight", "F32", [rows, columns], weights(rows, columns, n).tobytes())
        for n, (rows, columns) in enumerate([(1500, 512), (3, 256), (700, 768), (2, 131072)])
    ]
    (tmp_path / "m.safetensors").write_bytes(write_safetensors(tensors, align=64))
    made = {
        jobs: (
            run(
                "m.safetensors", "out.gguf", "--to", to, "--force", "-j", jobs, "-f", "json"
            ).stdout,
            (tmp_path / "out.gguf").read_bytes(),
        )
        for jobs in (1, 2, 7)
    }
    assert made[1] == made[2] == made[7]

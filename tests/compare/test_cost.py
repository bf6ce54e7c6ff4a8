"""What quantizing cost: numbers that do not lie, and verdicts on what other programs wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from packings import GPTQ_CONFIG, NAME, Matrix, save, save_gguf
from test_cost_faults import floats, rounded, weights

from qassay.cli.main import cli
from qassay.comparison.cost.facts import Cost
from qassay.kernels.cost import Of
from qassay.testing.safetensors_writer import write_safetensors

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
READ = [
    "autoround-fp8_block",
    "autoround-w3a16",
    "autoround-w4a16",
    "autoround-w4a16-asym-gptq",
    "autoround-w4a16-awq",
    "gptqmodel-gptq-w4g128-desc",
    "llmcompressor-fp8_block",
    "llmcompressor-mxfp4a16",
    "llmcompressor-nvfp4a16",
    "llmcompressor-w4a16",
    "llmcompressor-w4a16_asym",
]
ENGINES = [
    *(("ggml", kind) for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
                                  "Q5_K", "Q6_K", "MXFP4")),
    ("ggml-avx2", "Q8_0"),
    *(("gguf-py", kind) for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")),
    *(("candle", kind) for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")),
    ("kestrel", "Q4_0"),
    ("kestrel-legacy", "Q4_0"),
]  # fmt: skip
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.mark.parametrize("name", READ)
def test_what_quantizers_made_of_the_tiny_llama_is_no_finding(name, compare):
    code, report = compare(FOLDER / "source-tiny-llama-f16", FOLDER / name)
    assert (code, report["verdict"], report["findings"]) == (0, "clean", [])
    assert report["result"]["relation"] == "quantized"
    layers = [x for x in report["result"]["layers"] if x["relation"] == "quantized"]
    assert len(layers) == 6
    for layer in layers:
        expected = layer["cost"]["expected"]
        assert 0.7 < expected["ratio"] < 1.4
        assert expected["code_ratio"] < 1.45
        assert layer["cost"]["nonfinite"] == {"hidden": 0, "born": 0, "both": 0}


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """Real weights: the float copy of what the golden file of all types was made from."""
    from qassay.encodings.registry import open_with_encodings

    source = FOLDER.parent / "minilm-l0-out-alltypes.gguf"
    container = open_with_encodings(source)
    tensor = next(t for t in container.tensors if t.type.name == "F32" and len(t.shape) == 2)
    data = bytes(tensor.raw())
    shape = list(tensor.shape)
    container.close()
    path = tmp_path_factory.mktemp("real") / "model.safetensors"
    path.write_bytes(write_safetensors([("layers.0.ffn.weight", "F32", shape, data)]))
    return path


def written(source: Path, folder: Path, engine: str, kind: str) -> Path:
    target = folder / "out.gguf"
    wish = ["--to", kind, "--engine", engine, "--exit-zero", "--allow", "Q5"]
    CliRunner().invoke(cli, ["quantize", str(source), str(target), *wish])
    assert target.exists()
    return target


@pytest.mark.parametrize(("engine", "kind"), ENGINES)
def test_our_engines_cost_what_they_should(engine, kind, real, tmp_path, compare):
    code, report = compare(real, written(real, tmp_path, engine, kind))
    assert (code, report["findings"]) == (0, [])
    [layer] = report["result"]["layers"]
    assert layer["relation"] == "quantized"
    assert layer["cost"]["expected"]["ratio"] < 1.9


@pytest.mark.parametrize("engine", ["kestrel", "kestrel-legacy"])
def test_the_cast_that_cuts_off_is_found(engine, real, tmp_path, compare):
    code, report = compare(real, written(real, tmp_path, engine, "Q8_0"), "--fail-on", "warning")
    assert code == 1
    [finding] = report["findings"]
    assert (finding["code"], "(int)(x + 0.5)" in finding["message"]) == ("Q602", True)
    assert finding["data"]["negative_excess"] == pytest.approx(1, abs=0.05)
    assert finding["data"]["positive_excess"] == pytest.approx(0, abs=0.05)


def against(tmp_path: Path, compare: Run, source: np.ndarray, matrix: Matrix) -> Any:
    a = floats(tmp_path / "a", {NAME: source})
    config = json.loads(json.dumps({**GPTQ_CONFIG, "group_size": matrix.group}))
    b = save(tmp_path / "b", {NAME: matrix.gptq()}, config)
    code, report = compare(a, b)
    return code, report["findings"], report["result"]["layers"][0]


def test_nan_of_the_source_that_is_gone(tmp_path, compare):
    source = weights(64, 256)
    matrix = rounded(source, 32)
    source[3, 7], source[5, 9] = np.nan, np.inf
    code, [finding], layer = against(tmp_path, compare, source, matrix)
    assert (code, finding["code"], finding["count"]) == (1, "Q608", 2)
    assert finding["location"]["row"] == 3
    assert layer["cost"]["nonfinite"] == {"hidden": 2, "born": 0, "both": 0}
    # And nothing else changes.
    assert 0.8 < layer["cost"]["expected"]["ratio"] < 1.2
    assert layer["cost"]["compared"] == 64 * 256 - 2


def test_nan_that_quantizing_made_and_one_that_was_there(tmp_path, compare):
    source = weights(64, 256)
    matrix = rounded(source, 32)
    scales = matrix.scales.copy()
    scales[2, 1] = np.nan
    source[2, 40] = np.nan
    code, findings, layer = against(tmp_path, compare, source, replace(matrix, scales=scales))
    assert (code, [x["code"] for x in findings]) == (1, ["Q617", "Q617"])
    assert layer["cost"]["nonfinite"] == {"hidden": 0, "born": 31, "both": 1}
    assert 0.8 < layer["cost"]["expected"]["ratio"] < 1.2


def test_group_of_one_sign_is_the_quantizers_doing_and_no_layout(tmp_path, compare):
    """The formula of tpu-mlir's asymmetric quantizer, which does not extend ranges to zero."""
    source = weights(64, 256)
    source[7, 64:96] = np.linspace(0.50, 0.69, 32)
    groups = source.reshape(64, 8, 32)
    low, high = groups.min(axis=2), groups.max(axis=2)
    scales = np.maximum(high - low, 1e-5) / 15
    zeros = np.clip(-np.round(low / scales), 0, 15)
    codes = np.clip(np.round(groups / scales[..., None]) + zeros[..., None], 0, 15)
    matrix = Matrix(codes.astype(int).reshape(64, 256), zeros.astype(int),
                    scales.astype(np.float16), 32)  # fmt: skip
    code, [finding], _ = against(tmp_path, compare, source, matrix)
    assert (code, finding["code"], finding["severity"]) == (1, "Q601", "error")
    assert finding["data"]["kind"] == "one-sided-group"
    assert (finding["location"]["row"], finding["location"]["column"]) == (7, 64)
    assert finding["data"]["largest_steps"] > 30
    assert finding["data"]["layout"] is False


def test_weights_of_another_tensor(tmp_path, compare):
    one, two = weights(64, 256, 1), weights(64, 256, 2)
    other = NAME.replace("up", "gate")
    a = floats(tmp_path / "a", {NAME: one, other: two})
    parts = {NAME: rounded(two, 32).gptq(), other: rounded(two, 32).gptq()}
    code, report = compare(a, save(tmp_path / "b", parts, GPTQ_CONFIG))
    [finding] = report["findings"]
    assert (code, finding["code"]) == (1, "Q610")
    assert finding["data"]["weights_of"] == f"{other}.weight"


def test_a_float_copy_of_what_was_quantized_is_equal(tmp_path, compare):
    matrix = rounded(weights(64, 256), 32)
    code, findings, layer = against(tmp_path, compare, matrix.values(), matrix)
    assert (code, findings, layer["relation"]) == (0, [], "equal")


def test_scattered_wrong_codes_are_not_given_a_name(tmp_path, compare):
    source = weights(64, 256)
    matrix = rounded(source, 32)
    codes = matrix.codes.copy()
    rng = np.random.default_rng(1)
    row = rng.permutation(256)[:100]
    codes[4, row] = (codes[4, row] + 8) % 16
    _, findings, layer = against(tmp_path, compare, source, replace(matrix, codes=codes))
    assert [x["code"] for x in findings] == ["Q601"]
    assert findings[0]["data"]["kind"] == "unexplained"
    assert findings[0]["location"]["row"] == 4
    assert layer["transformations"] == []


@pytest.mark.parametrize("folded", [True, False])
def test_channels_that_awq_scales(folded, tmp_path, compare):
    """Columns times c are sound where the norm before holds 1/c; rows, where the next weight."""
    rng = np.random.default_rng(8)
    up, down = weights(128, 256, 1), weights(256, 128, 2)
    norm = rng.uniform(0.5, 2, 256).astype(np.float32)
    one, two = (np.exp(rng.normal(size=size) * 0.7).astype(np.float32) for size in (256, 128))
    layer, after = "model.layers.0.mlp", "model.layers.0.post_attention_layernorm"
    modules = {f"{layer}.up_proj": up, f"{layer}.down_proj": down, after: norm}
    a = floats(tmp_path / "a", modules)
    scaled = {
        f"{layer}.up_proj": rounded(up * one / two[:, None], 32),
        f"{layer}.down_proj": rounded(down * two, 32),
    }
    parts = {name: matrix.gptq() for name, matrix in scaled.items()}
    parts[after] = {"weight": norm / one if folded else norm}
    code, report = compare(a, save(tmp_path / "b", parts, GPTQ_CONFIG))
    relations = {x["name"]: x["relation"] for x in report["result"]["layers"]}
    if folded:
        assert (code, report["findings"]) == (0, [])
        assert relations[f"{layer}.up_proj.weight"] == "quantized"
    else:
        assert [x["code"] for x in report["findings"]] == ["Q601"]
        assert report["findings"][0]["data"]["kind"] == "channels-scaled"
        assert relations[f"{layer}.up_proj.weight"] == "different"


# The cases that comparers of saved outputs get wrong: two float matrices of 64 x 64.


def both(tmp_path: Path, compare: Run, one: np.ndarray, two: np.ndarray) -> Any:
    a, b = floats(tmp_path / "a", {NAME: one}), floats(tmp_path / "b", {NAME: two})
    code, report = compare(a, b)
    return code, report["findings"], report["result"]["layers"][0]


@pytest.fixture
def square() -> np.ndarray:
    return weights(64, 64, 5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("sides", "code", "kind"), [((1,), "Q617", "born"), ((0,), "Q608", "hidden"),
                                ((0, 1), "Q617", "both")],
)  # fmt: skip
def test_not_finite_on_one_side_or_both(sides, code, kind, value, square, tmp_path, compare):
    pair = [square.copy(), square.copy()]
    for side in sides:
        pair[side][3] = value
    exit_code, findings, _ = both(tmp_path, compare, *pair)
    assert (exit_code, [x["code"] for x in findings]) == (1, [code])
    assert (findings[0]["data"]["kind"], findings[0]["count"]) == (kind, 64)
    assert findings[0]["severity"] == "error"


def test_missing_and_extra_tensors(square, tmp_path, compare):
    a = floats(tmp_path / "a", {NAME: square, "model.layers.0.mlp.gate_proj": square})
    b = floats(tmp_path / "b", {NAME: square, "model.layers.1.mlp.gate_proj": square})
    code, report = compare(a, b)
    assert (code, [x["code"] for x in report["findings"]]) == (1, ["Q612", "Q612"])


def test_zeroed_column(square, tmp_path, compare):
    other = square.copy()
    other[:, 11] = 0
    code, [finding], layer = both(tmp_path, compare, square, other)
    assert (code, finding["code"], finding["severity"]) == (1, "Q601", "error")
    assert (finding["location"]["column"], layer["relation"]) == (11, "different")
    assert layer["cost"]["max_error"]["column"] == 11


@pytest.mark.parametrize("axis", [0, 1])
def test_permuted_rows_and_columns(axis, square, tmp_path, compare):
    order = np.random.default_rng(2).permutation(64)
    code, [finding], layer = both(tmp_path, compare, square, np.take(square, order, axis=axis))
    assert (code, finding["code"]) == (1, "Q603")
    assert finding["data"]["order"] == order.tolist()
    assert layer["relation"] == "equal-up-to"


def test_two_swapped_rows(square, tmp_path, compare):
    order = np.arange(64)
    order[[9, 30]] = [30, 9]
    code, [finding], layer = both(tmp_path, compare, square, square[order])
    assert (code, finding["code"], "swapped: 9 and 30" in finding["message"]) == (1, "Q603", True)
    # What comparers of one cosine call close enough.
    assert layer["cost"]["cosine"] > 0.9


def test_values_in_other_places(square, tmp_path, compare):
    other = square.reshape(-1)[np.random.default_rng(4).permutation(4096)].reshape(64, 64)
    code, [finding], _ = both(tmp_path, compare, square, other)
    assert (code, finding["code"]) == (1, "Q603")
    assert finding["data"]["kind"] == "values-moved"
    flipped = square.copy()
    flipped[0, 0] = -flipped[0, 0]
    (tmp_path / "c").mkdir()
    assert both(tmp_path / "c", compare, square, flipped)[1][0]["code"] == "Q611"


def test_transposed(square, tmp_path, compare):
    _, [finding], _ = both(tmp_path, compare, square, np.ascontiguousarray(square.T))
    assert (finding["code"], "transposed" in finding["message"]) == ("Q603", True)


@pytest.mark.parametrize("group", [32, 64])
def test_honest_rounding_in_floats_is_no_finding(group, square, tmp_path, compare):
    code, findings, layer = both(tmp_path, compare, square, rounded(square, group).values())
    assert (code, findings) == (0, [])
    assert layer["relation"] == "quantized"
    assert layer["cost"]["snr_db"] == pytest.approx(20, abs=3)


def test_noise_in_floats_is_different(square, tmp_path, compare):
    noise = np.random.default_rng(6).normal(size=square.shape).astype(np.float32) * 0.002
    code, [finding], layer = both(tmp_path, compare, square, square + noise)
    assert (code, finding["code"]) == (1, "Q611")
    assert layer["cost"]["rmse"] == pytest.approx(0.002, rel=0.05)


# Numbers.


def test_metrics_are_those_of_their_formulas(tmp_path, compare):
    source = weights(64, 256) + np.float32(0.01)
    matrix = rounded(source, 32)
    _, _, layer = against(tmp_path, compare, source, matrix)
    old, new = source.astype(np.float64), matrix.values().astype(np.float64)
    error, cost = new - old, layer["cost"]
    steps = np.abs(error) / np.repeat(matrix.scales.astype(np.float64), 32, 1)
    noise, signal = (error**2).sum(), (old**2).sum()
    apart = ((old - old.mean()) ** 2).sum() / ((error - error.mean()) ** 2).sum()
    near = {"rel": 6e-4}
    assert cost["rmse"] == pytest.approx(math.sqrt((error**2).mean()), **near)
    assert cost["max_error"]["value"] == pytest.approx(np.abs(error).max(), **near)
    at = np.unravel_index(np.abs(error).argmax(), error.shape)
    assert (cost["max_error"]["row"], cost["max_error"]["column"]) == at
    assert cost["max_steps"]["value"] == pytest.approx(steps.max(), **near)
    assert cost["snr_db"] == pytest.approx(10 * math.log10(signal / noise), **near)
    assert cost["sqnr_db"] == pytest.approx(10 * math.log10(apart), **near)
    cosine = (old * new).sum() / math.sqrt(signal * (new**2).sum())
    assert cost["cosine"] == pytest.approx(cosine, rel=1e-7)
    euclid = 1 - math.sqrt(noise) / (math.sqrt((((old + new) / 2) ** 2).sum()) + 1e-7)
    assert cost["euclid"] == pytest.approx(euclid, **near)
    assert cost["relative_error"] == pytest.approx(math.sqrt(noise / signal), **near)
    below = (error / np.repeat(matrix.scales.astype(np.float64), 32, 1))[old < 0].mean()
    assert cost["bias_steps"]["negative"] == pytest.approx(below, rel=1e-2)
    assert cost["passes_at"]["absolute"] == cost["max_error"]["value"]
    by_row = np.sqrt((error**2).sum(axis=1) / (old**2).sum(axis=1))
    assert cost["rows"]["relative_error"][-1] == pytest.approx(by_row.max(), **near)
    assert cost["rows"]["worst"][0] == int(by_row.argmax())


def test_sums_beyond_a_double_are_told_as_such():
    cost = Cost()
    for name in cost.sums:
        cost.sums[name] = [math.inf if name is Of.ERR2 else 1.0]
    assert math.isinf(cost.rmse)
    assert cost.snr_db is None


def test_float_experts_one_by_one_and_rotary_rows_against_gguf(tmp_path, compare):
    query = weights(128, 128, 1)
    experts = [weights(64, 128, seed) for seed in range(2, 6)]
    name = "model.layers.0.mlp.experts.{}.up_proj"
    modules = {name.format(at): expert for at, expert in enumerate(experts)}
    a = floats(tmp_path / "a", {"model.layers.0.self_attn.q_proj": query, **modules})
    # conversion/llama.py, `permute`, written down once more
    rotated = query.reshape(4, 2, 16, 128).swapaxes(1, 2).reshape(128, 128)
    packed = [rounded(each, 32, symmetric=True).q4_0() for each in experts]
    tensors = [
        ("blk.0.attn_q.weight", 2, [128, 128], rounded(rotated, 32, symmetric=True).q4_0()),
        ("blk.0.ffn_up_exps.weight", 2, [128, 64, 4], b"".join(packed)),
    ]
    heads = {"general.architecture": "llama", "llama.attention.head_count": 4}
    b = save_gguf(tmp_path / "b.gguf", tensors, heads)
    code, report = compare(a, b)
    assert (code, report["findings"]) == (0, [])
    assert [x["relation"] for x in report["result"]["layers"]] == ["quantized"] * 2
    changed = b"".join([packed[1], packed[0], *packed[2:]])
    c = save_gguf(tmp_path / "c.gguf", [tensors[0], (*tensors[1][:3], changed)], heads)
    _, report = compare(a, c)
    [finding] = report["findings"]
    assert (finding["code"], finding["data"]["moved"]) == ("Q603", 128)


@pytest.mark.parametrize("kernels", ["reference", "fast"])
def test_same_report_for_any_piece(kernels, real, tmp_path, compare, monkeypatch):
    monkeypatch.setenv("QASSAY_KERNELS", kernels)
    target = written(real, tmp_path, "ggml", "Q4_K")
    whole = compare(real, target)[1]
    monkeypatch.setattr("qassay.comparison.weights.SLAB", 3 * 1536)
    assert compare(real, target)[1] == whole


def test_both_kernels_give_one_report(real, tmp_path, compare, monkeypatch):
    target = written(real, tmp_path, "kestrel", "Q8_0")
    found = []
    for kernels in ("reference", "fast"):
        monkeypatch.setenv("QASSAY_KERNELS", kernels)
        [layer] = compare(real, target)[1]["result"]["layers"]
        found.append(layer["cost"])
    for word in ("rmse", "snr_db", "max_steps", "max_error", "rows", "expected", "bias_steps"):
        assert flat(found[0][word]) == pytest.approx(flat(found[1][word]), rel=2e-3), word


def flat(told: Any) -> list[float]:
    if isinstance(told, dict):
        return [each for value in told.values() for each in flat(value)]
    return [each for value in told for each in flat(value)] if isinstance(told, list) else [told]

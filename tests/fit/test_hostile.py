"""What nobody vouches for: bounded work, no silent choice, and never a clean bill by mistake."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fit_models import QWEN3_5_2B, QWEN3_8B, ask, shapes

from qassay.core.errors import InputError
from qassay.runtimes import fit_remedies
from qassay.runtimes.shapes.table import load_yaml, shapes_of_table
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
ON = "sophgo:bm1684x@1.28.1"


def table(tmp_path, text, suffix=".csv"):
    path = tmp_path / f"t{suffix}"
    path.write_text(text)
    return path


def ways_of(finding):
    return {way["kind"]: way for way in finding.data["remedies"]}


@pytest.mark.parametrize(
    "text",
    [
        "- {name: a, N: " + "1" + ":59" * 100_000 + ", K: 64}",  # minutes, as YAML 1.1 reads it
        "- {name: a, N: 1:30, K: 64}",  # and this would be 90
        "- {name: a, N: 0x40, K: 64}",
        "- {name: a, N: 64, N: 96, K: 64}",
        "- {name: a, N: 64, n: 96, K: 64}",
        "- {name: a, N: 64, K: 64}\n---\n- {name: b, N: 96, K: 64}\n",
        "- &x {name: a, N: 64, K: 64}\n- <<: *x\n",
        "&a [*a]",
        "- {name: !!binary YQ==, N: 64, K: 64}",
        "- !!set {name, N, K}",
        "- {? [a] : 1, name: a, N: 64, K: 64}",
    ],
    ids=lambda text: text[:30],
)
def test_yaml_is_taken_as_text(text):
    started = time.monotonic()
    with pytest.raises(InputError):
        shapes_of_table(text, "t", ".yaml")
    assert time.monotonic() - started < 5


def test_yaml_scalars_stay_text():
    assert load_yaml("- {name: 2001-99-99, N: 64, K: '64'}") == [
        {"name": "2001-99-99", "N": "64", "K": "64"}
    ]
    with pytest.raises(ValueError, match="nested"):
        load_yaml("[" * 9 + "]" * 9)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [(".csv", "name,N,K,n\na,64,64,96\n"), (".json", '[{"name": "a", "N": 64, "N": 96, "K": 64}]'),
     (".json", '[{"name": "a", "N": NaN, "K": 64}]'), (".json", "[] []")],
)  # fmt: skip
def test_what_is_stated_twice_is_refused(suffix, text):
    with pytest.raises(InputError):
        shapes_of_table(text, "t", suffix)


def test_csv_lines_end_where_csv_says():
    found = shapes_of_table("layer,name,N,K\n1,a\u2028b,96,64\n2,c\x0bd,64,64\n", "t", ".csv")
    assert [(one.name, one.n) for one in found.linears] == [("a\u2028b", 96), ("c\x0bd", 64)]


def test_a_configuration_with_shapes_in_it_is_a_configuration(tmp_path):
    config = {**QWEN3_5_2B, "shapes": [{"name": "a", "N": 64, "K": 64}]}
    assert [finding.count for finding in ask(tmp_path, config, ON).findings] == [36]


@pytest.mark.parametrize("key", ["model_type", "hidden_size", "quantization_config"])
def test_a_key_that_stands_twice_is_refused(tmp_path, key):
    """Readers differ in which they take: transformers the last one."""
    text = json.dumps({**QWEN3_8B, "quantization_config": {}})
    path = tmp_path / "config.json"
    path.write_text(text[:-1] + f', "{key}": 64}}')
    report = ask(tmp_path, path, ON)
    assert report.verdict == "incomplete"
    assert f"{key} stands twice" in report.coverage.skipped[0].reason


def test_sizes_that_multiply_to_no_size():
    with pytest.raises(InputError, match="would have a shape"):
        shapes({**QWEN3_8B, "num_attention_heads": 1 << 28, "head_dim": 1 << 28})


@pytest.mark.parametrize("chip", ["bm1684x", "bm1684"])
def test_many_reasons_are_bounded(tmp_path, chip, monkeypatch):
    rows = "".join(f"a{at},{at * 64 + 1},4096\n" for at in range(2000))
    monkeypatch.setattr(fit_remedies, "MOST_TRIED", 500)
    report = ask(tmp_path, table(tmp_path, "name,N,K\n" + rows), f"sophgo:{chip}@1.28.1")
    assert sum(finding.count for finding in report.findings) == 2000
    assert "were not tried" in report.findings[-1].help
    [told] = [way for way in report.findings[-1].data["remedies"] if way["kind"] == "not-tried"]
    assert told["helps"] is False


def test_whether_a_model_is_quantized_is_looked_for_once():
    found = shapes(QWEN3_5_2B)
    assert not found.quantized
    found.linears = [*found.linears[1:], found.linears[0]]
    assert not found.quantized
    found.linears.append(shapes({**QWEN3_8B, "quantization_config": {
        "quant_method": "gptq", "bits": 4, "group_size": 128}}).linears[0])  # fmt: skip
    assert found.quantized


def test_a_way_out_is_one_for_every_linear(tmp_path):
    """On bm1684 nothing runs; another chip takes the wide one as it is, and not the narrow one."""
    text = "name,N,K\na.up_proj,64,4096\nb.gate,16,4096\n"
    [finding] = ask(tmp_path, table(tmp_path, text), "sophgo:bm1684").findings
    places = ways_of(finding)["elsewhere"]["places"]
    assert finding.count == 2
    assert "sophgo:cv184x@1.30.2" in places
    assert "sophgo:bm1684x@1.30.2" not in places


def test_a_share_is_written_out(tmp_path):
    path = table(tmp_path, "name,N,K\nl.0.up_proj,192,4096\nl.0.down_proj,64,4096\n")
    [finding] = ask(tmp_path, path, ON, tp=2).findings
    assert "N = 192 / 2 = 96 is no multiple of 64" in finding.message
    assert (ways_of(finding)["pad"]["to"], ways_of(finding)["split"]["kept"]) == (256, 128)
    report = ask(tmp_path, path, ON, tp=5)
    reasons = [skip.reason for skip in report.coverage.skipped]
    assert reasons == ["N = 192 is not split evenly by 5 ranks",
                       "K = 4096 is not split evenly by 5 ranks"]  # fmt: skip


def test_fewer_bytes_are_less(tmp_path):
    path = table(tmp_path, "name,N,K\nl.0.up_proj,96,4096\n")
    [finding] = ask(tmp_path, path, "sophgo:bm1684x@1.30.2", group_size=1).findings
    assert ways_of(finding)["keep-16-bit"]["bytes"] < 0
    assert "589.8 kB less" in finding.help


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
        "checkpoint_format": "gptq"}  # fmt: skip


def gptq_folder(tmp_path, config, shape=None):
    parts = (("qweight", "I32", [32, 128]), ("qzeros", "I32", [2, 16]),
             ("scales", "F16", [2, 128]), ("g_idx", "I32", [256]))  # fmt: skip
    tensors = []
    for name, dtype, axes in parts:
        size = 4 if dtype == "I32" else 2
        for axis in axes:
            size *= axis
        tensors.append(SafeTensor(f"model.layers.0.mlp.up_proj.{name}", dtype, axes, bytes(size)))
    if shape is not None:
        name = "model.layers.0.mlp.down_proj.weight"
        tensors.append(SafeTensor(name, "F16", shape, bytes(64)))
    (tmp_path / "model.safetensors").write_bytes(write_safetensors(tensors))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": {**GPTQ, **config}})
    )
    return tmp_path


@pytest.mark.parametrize(
    ("config", "said"),
    [({}, ""), ({"bits": 3}, "3 bits"), ({"group_size": 64}, "groups of 64"),
     ({"desc_act": "maybe"}, "act-order")],
)  # fmt: skip
def test_a_configuration_that_contradicts_the_tensors_is_not_clean(tmp_path, config, said):
    report = ask(tmp_path, gptq_folder(tmp_path, config), ON, to=None)
    assert report.verdict == ("incomplete" if said else "clean")
    assert [said in skip.reason for skip in report.coverage.skipped] == ([True] if said else [])


@pytest.mark.parametrize("shape", [[-16, 64], [1 << 62, 1 << 62], [16, 65]])
def test_a_weight_whose_shape_is_a_lie_is_not_left_out(tmp_path, shape):
    report = ask(tmp_path, gptq_folder(tmp_path, {}, shape), ON, to=None)
    assert report.verdict == "incomplete"
    assert any("down_proj" in skip.name for skip in report.coverage.skipped)


def test_scales_of_a_form_that_is_not_read_are_no_linears(tmp_path):
    for to in (None, "w4bf16"):
        report = ask(tmp_path, CHECKPOINTS / "hqq-b4g64", "sophgo:bm1684x", to=to)
        assert (report.verdict, report.findings) == ("incomplete", ())


def test_gguf_is_judged_by_its_shapes_and_says_so(tmp_path):
    rows = [("blk.0.ssm_alpha.weight", 0, [64, 16], bytes(4096))]
    path = tmp_path / "m.gguf"
    path.write_bytes(write_gguf({"general.architecture": "qwen35"}, rows))
    report = ask(tmp_path, path, ON)
    assert [finding.code for finding in report.findings] == ["Q701"]
    assert any("GGUF" in note for note in report.result["fits"][0]["notes"])

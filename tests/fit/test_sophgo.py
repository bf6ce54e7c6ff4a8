"""What TPU-MLIR does with published models, by chip and version."""

from __future__ import annotations

import pytest
from fit_models import LLAMA_3_8B, QWEN3_5_2B, QWEN3_8B, ask, auto_round, qwen3_5

from qassay.core.finding import Severity
from qassay.runtimes.sophgo.chips import CHIPS

LINEAR_LAYERS = [layer for layer in range(24) if (layer + 1) % 4]
GATES = {
    f"model.language_model.layers.{layer}.linear_attn.in_proj_{which}"
    for layer in LINEAR_LAYERS
    for which in "ab"
}


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(("chip", "lanes"), [("bm1684x", 64), ("bm1688", 32)])
class TestTwoBillion:
    def test_aborts_in_1_28_1(self, tmp_path, chip, lanes, group_size):
        report = ask(tmp_path, QWEN3_5_2B, f"sophgo:{chip}@1.28.1", group_size=group_size)
        [finding] = report.findings
        assert (finding.code, finding.severity.label, finding.count) == ("Q701", "error", 36)
        assert finding.certainty.value == "proven"
        assert set(finding.data["layers"]) == GATES
        assert finding.data["stage"] == "compile"
        assert finding.data["step"] == "weight-reorder"
        assert finding.data["error"] == "invalid scale channel"
        assert finding.data["shapes"] == [{"n": 16, "k": 2048, "layers": 36}]
        assert f"no multiple of {lanes}" in finding.message
        ways = {way["kind"]: way for way in finding.data["remedies"]}
        assert ways["group-size"]["helps"] is False
        assert ways["group-size"]["group_sizes"] == []
        assert ways["pad"]["to"] == lanes
        assert ways["keep-16-bit"]["helps"] is False
        assert ways["keep-16-bit"]["with"] == [f"sophgo:{chip}@1.30.2"]
        assert report.exit_code() == 1

    def test_becomes_bf16_in_1_30_2(self, tmp_path, chip, lanes, group_size):  # noqa: ARG002
        report = ask(tmp_path, QWEN3_5_2B, f"sophgo:{chip}@1.30.2", group_size=group_size)
        [finding] = report.findings
        assert (finding.code, finding.severity.label, finding.count) == ("Q703", "warning", 36)
        assert set(finding.data["layers"]) == GATES
        assert "without a word" in finding.message
        assert (report.verdict, report.exit_code()) == ("findings", 0)


def test_layers_that_the_checkpoint_keeps_are_quantized_again(tmp_path):
    kept = auto_round(QWEN3_5_2B)
    report = ask(tmp_path, kept, "sophgo:bm1684x@1.28.1", to=None)
    [finding] = report.findings
    assert (finding.code, finding.count) == ("Q701", 36)
    assert set(finding.data["layers"]) == GATES
    assert finding.data["weights"] == "again"
    assert "keeps them at 16 bits" in finding.message
    report = ask(tmp_path, kept, "sophgo:bm1684x@1.30.2", to=None)
    assert report.findings == ()
    assert report.verdict == "clean"


def test_layers_that_fit_are_quantized_again_without_a_word(tmp_path):
    kept = auto_round(QWEN3_5_2B, kept=("out_proj",))
    report = ask(tmp_path, kept, "sophgo:cv186x@1.28.1", to=None)
    told = {finding.data["rule"]: finding for finding in report.findings}
    again = told["sophgo.quantized-again"]
    assert (again.code, again.severity.label, again.count) == ("Q703", "warning", 18)


SIZES = {
    # heads, K, mixture of experts
    "0.8B": (16, 1024, False),
    "2B": (16, 2048, False),
    "4B": (32, 2560, False),
    "9B": (32, 4096, False),
    "27B": (48, 5120, False),
    "35B-A3B": (32, 2048, True),
    "122B-A10B": (64, 3072, True),
    "397B-A17B": (64, 4096, True),
}
FAILS = {64: {16, 32, 48}, 32: {16, 48}, 8: set()}
BY_LANES = {
    "bm1684x": 64, "bm1690": 64, "bm1688": 32, "cv186x": 32, "cv184x": 8,
}  # fmt: skip


def gates_of(report, code):
    """Return the sizes N of the linear-attention gates that fail."""
    return {
        shape["n"]
        for finding in report.findings
        if finding.code == code
        for shape in finding.data["shapes"]
        if any("in_proj_" in name for name in finding.data["layers"])
    }


@pytest.mark.parametrize("chip", BY_LANES)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_on_every_chip(tmp_path, size, chip):
    heads, hidden, moe = SIZES[size]
    config = qwen3_5(hidden, heads, layers=4, moe=moe)
    report = ask(tmp_path, config, f"sophgo:{chip}@1.28.1")
    fails = heads in FAILS[BY_LANES[chip]]
    assert gates_of(report, "Q701") == ({heads} if fails else set())
    after = ask(tmp_path, config, f"sophgo:{chip}@1.30.2")
    assert gates_of(after, "Q703") == ({heads} if fails else set())
    # One row of the table of experts: the gate of the shared one has N = 1 everywhere.
    ones = [f for f in report.findings if any("shared_expert_gate" in n for n in f.data["layers"])]
    assert [f.count for f in ones] == ([4] if moe else [])
    assert all(f.certainty.value == "likely" for f in ones)
    assert not any("mlp.gate" in n and "shared" not in n
                   for f in report.findings for n in f.data["layers"])  # fmt: skip


@pytest.mark.parametrize(
    ("chip", "fits"), [("bm1684x", False), ("bm1690", False), ("bm1688", False), ("cv184x", True)]
)
def test_27b(tmp_path, chip, fits):
    config = qwen3_5(5120, 48, layers=64, num_attention_heads=24, num_key_value_heads=4,
                     intermediate_size=17408)  # fmt: skip
    report = ask(tmp_path, config, f"sophgo:{chip}@1.28.1")
    assert [(f.code, f.count) for f in report.findings] == ([] if fits else [("Q701", 96)])


def test_qwen3_next_fuses_its_gates(tmp_path):
    config = {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "num_experts": 512, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "vocab_size": 151936,
    }  # fmt: skip
    report = ask(tmp_path, config, "sophgo:bm1684x@1.28.1")
    assert [name for f in report.findings for name in f.data["layers"]] == [
        f"model.layers.{layer}.mlp.shared_expert_gate" for layer in range(4)
    ]


@pytest.mark.parametrize("chip", [chip.id for chip in CHIPS.values() if chip.has_a16matmul])
@pytest.mark.parametrize("version", ["1.28.1", "1.30.2"])
@pytest.mark.parametrize("config", [LLAMA_3_8B, QWEN3_8B], ids=["llama-3-8b", "qwen3-8b"])
def test_sound_pairs_stay_silent(tmp_path, config, chip, version):
    for to, group in (("w4bf16", 64), ("w4bf16", 128), ("w8bf16", 64), ("w4bf16", -1)):
        report = ask(tmp_path, config, f"sophgo:{chip}@{version}", to=to, group_size=group)
        assert not [f.message for f in report.findings if f.severity > Severity.INFO]
        assert report.complete


@pytest.mark.parametrize("chip", [chip.id for chip in CHIPS.values() if not chip.has_a16matmul])
def test_chips_without_the_operation(tmp_path, chip):
    [finding] = ask(tmp_path, QWEN3_8B, f"sophgo:{chip}").findings
    assert (finding.code, finding.count) == ("Q701", 36 * 7)
    assert "TopToTpuPass" in finding.data["error"]


def test_per_channel_wants_k_in_whole_groups_of_128(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("name,N,K\na.down_proj,64,192\nb.down_proj,64,256\n")
    for version in ("1.28.1", "1.30.2"):
        [finding] = ask(tmp_path, table, f"sophgo:bm1684x@{version}", group_size=-1).findings
        assert (finding.code, finding.data["layers"]) == ("Q701", ["a.down_proj"])
        assert finding.data["error"] == "invalid weight size"
        ways = {way["kind"]: way for way in finding.data["remedies"]}
        assert ways["group-size"]["group_sizes"] == [32, 64]


def test_ragged_groups_of_floats_stay_a_plain_matmul(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("name,N,K\na.down_proj,64,192\nb.down_proj,64,320\nc.gate,16,192\n")
    report = ask(tmp_path, table, "sophgo:bm1684x@1.28.1", group_size=128)
    assert [(f.code, f.data["rule"], f.data["layers"]) for f in report.findings] == [
        ("Q703", "sophgo.float-groups", ["a.down_proj", "c.gate"]),
        ("Q703", "sophgo.float-groups", ["b.down_proj"]),
    ]


def test_96_of_96_x_4096_on_bm1684x(tmp_path):
    """The worked example: both group sizes fail, padding to 128 costs a third, 64 + 32."""
    table = tmp_path / "t.csv"
    table.write_text("name,N,K\nx,96,4096\n")
    for group in (64, 128):
        report = ask(tmp_path, table, "sophgo:bm1684x@1.28.1", group_size=group)
        [finding] = report.findings
        ways = {way["kind"]: way for way in finding.data["remedies"]}
        assert ways["pad"]["to"] == 128
        assert round(ways["pad"]["share"], 2) == 0.33
        bits = {64: 4.375, 128: 4.1875}[group]
        assert ways["pad"]["bytes"] == 32 * 4096 * bits / 8
        assert ways["pad"]["weights"] == 32 * 4096
        assert (ways["split"]["kept"], ways["split"]["rest"]) == (64, 32)
        assert "sophgo:bm1688@1.28.1" in [
            place for way in finding.data["remedies"] for place in way.get("places", [])
        ]


def test_never_says_that_the_chip_cannot(tmp_path):
    for chip in ("bm1684x", "bm1688"):
        for version in ("1.28.1", "1.30.2"):
            [finding] = ask(tmp_path, QWEN3_5_2B, f"sophgo:{chip}@{version}").findings
            assert "the weight reorder of this path" in finding.message
            assert "cannot" not in finding.message

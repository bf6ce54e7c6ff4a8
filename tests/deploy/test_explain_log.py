"""`qassay explain-log`: on real aborts, alone, with the .mlir, and with three blocks mixed."""

from __future__ import annotations

import random
import shutil

import pytest
from by_hand import TPU

FOLDER = TPU / "bm1684x-1.28.1"
NAMES = ("w4_n96_k256_g64", "w4_n16_k256_g64", "f32_n16_k256")


def texts() -> list[object]:
    return [
        word for name in NAMES for word in ("--mlir", FOLDER / f"{name}_bm1684x_w4bf16_pre.mlir")
    ]


def test_with_the_mlir_beside_it(document, run):
    log = FOLDER / "w4_n96_k256_g64_error.log"
    code, report = document("explain-log", log)
    assert (code, report["verdict"]) == (1, "findings")
    [finding] = report["findings"]
    assert (finding["code"], finding["name"], finding["tensor"]) == (
        "Q701", "runtime-rejects", "linear0",
    )  # fmt: skip
    data = finding["data"]
    assert (data["stage"], data["step"], data["condition"]) == (
        "compile", "weight-reorder", "N % P == 0",
    )  # fmt: skip
    assert data["file"].endswith("WeightReorder/BM1684X/A16MatMul.cpp")
    assert (data["file_line"], data["layers"], data["shapes"]) == (274, ["linear0"], [[96, 256]])
    assert "invalid scale channel" in finding["message"]
    assert "pad" in finding["help"]
    [block] = report["result"]["blocks"]
    [layer] = block["layers"]
    assert (layer["name"], layer["n"], layer["k"]) == ("linear0", 96, 256)
    assert (layer["weight_bits"], layer["q_group_size"], layer["w_transpose"]) == (4, 64, True)
    assert (layer["scale"], layer["zero_point"]) == ("96x4xbf16", "96x4xui8")
    assert (layer["weight"], layer["input"]) == ("96x128xui8", "1x4x256xbf16")
    assert report["result"]["one_shape"] is True
    text = run("explain-log", log).stdout
    assert "A16MatMul.cpp:274" in text
    assert "linear0: N = 96, K = 256" in text


def test_alone(document, run, tmp_path):
    log = tmp_path / "build.log"
    shutil.copy(FOLDER / "w4_n96_k256_g64_error.log", log)
    code, report = document("explain-log", log)
    assert code == 1
    [finding] = report["findings"]
    assert finding["tensor"] is None
    assert finding["data"]["layers"] == []
    assert (finding["data"]["step"], finding["data"]["file_line"]) == ("weight-reorder", 274)
    assert "layer not in the log" in finding["message"]
    assert report["result"]["one_shape"] is None
    assert "layer not in the log" in run("explain-log", log).stdout


@pytest.mark.parametrize("seed", range(5))
def test_three_blocks_mixed(document, run, tmp_path, seed):
    rng = random.Random(seed)
    queues = [(FOLDER / f"{name}_error.log").read_text().splitlines() for name in NAMES]
    lines = []
    while any(queues):
        lines.append(rng.choice([one for one in queues if one]).pop(0))
    log = tmp_path / "build.log"
    log.write_text("\n".join(lines))
    code, report = document("explain-log", log, *texts())
    assert code == 1
    blocks = report["result"]["blocks"]
    assert len(blocks) == 3
    for block in blocks:
        name = next(one for one in NAMES if block["input"].startswith(one))
        assert block["input"] == f"{name}_bm1684x_w4bf16_pre.mlir"
        assert block["command"].startswith(f"tpuc-opt {name}_bm1684x_w4bf16_pre.mlir ")
        assert block["command"].endswith(f"-o {name}_bm1684x_w4bf16_reorder.mlir")
        assert block["weight_file"] == f"{name}_tpu_lowered_bm1684x_w4bf16_weight.npz"
        assert block["error"]["file_line"] == 274
        assert [one["n"] for one in block["layers"]] == [96 if "n96" in name else 16]
    assert report["result"]["one_shape"] is False
    assert sorted(report["result"]["shapes"]) == [[16, 256], [96, 256]]
    [finding] = report["findings"]
    assert (finding["count"], len(finding["data"]["blocks"])) == (3, 3)
    text = run("explain-log", log, *texts()).stdout
    assert "the failing blocks have 2 shapes" in text
    # without the texts: split all the same, and the shape is not known
    code, report = document("explain-log", log)
    assert (code, len(report["result"]["blocks"]), report["result"]["one_shape"]) == (1, 3, None)
    assert "not known" in run("explain-log", log).stdout


def test_blocks_of_one_shape(document, run, tmp_path):
    log = tmp_path / "build.log"
    two = NAMES[1:]
    log.write_text("".join((FOLDER / f"{name}_error.log").read_text() + "\n" for name in two))
    code, report = document("explain-log", log, *texts())
    assert (code, report["result"]["one_shape"]) == (1, True)
    assert report["result"]["shapes"] == [[16, 256]]
    assert "share one shape: [16, 256]" in run("explain-log", log, *texts()).stdout


def test_a_message_without_its_command(document, tmp_path):
    log = tmp_path / "pasted.log"
    log.write_text("invalid scale channel\nUNREACHABLE executed at /x/A16MatMul.cpp:274!\n")
    code, report = document("explain-log", log)
    assert code == 1
    [finding] = report["findings"]
    assert (finding["certainty"], finding["data"]["step"]) == ("likely", "weight-reorder")
    assert finding["data"]["file_line"] == 274


FAILED = "[!Error]: tpuc-opt a.mlir --codegen=x -o b.mlir"


@pytest.mark.parametrize(
    "lines",
    [
        ["something else failed at /x/Foo.cpp:12: Assertion `x > 0' failed.", FAILED],
        [FAILED],
        ["Traceback (most recent call last):", '  File "x.py", line 1', "KeyError: 'group_size'"],
        ["hello"],
        [],
        ["[Running]: tpuc-opt a.mlir --codegen=x -o b.mlir", "Segmentation fault (core dumped)"],
    ],
)
def test_what_is_not_recognised(document, tmp_path, lines):
    log = tmp_path / "build.log"
    log.write_text("\n".join(lines))
    code, report = document("explain-log", log)
    assert (code, report["findings"], report["verdict"]) == (3, [], "incomplete")
    assert report["coverage"]["skipped"]
    assert document("explain-log", log, "--allow-incomplete")[0] == 0


def test_a_log_without_a_failure(document, run, tmp_path):
    log = tmp_path / "build.log"
    log.write_text("[Running]: tpuc-opt a.mlir --codegen=x -o b.mlir\n"
                   "[Success]: tpuc-opt a.mlir --codegen=x -o b.mlir\n")  # fmt: skip
    code, report = document("explain-log", log)
    assert (code, report["findings"], report["coverage"]["skipped"]) == (0, [], [])
    assert "none of them failed" in run("explain-log", log).stdout


def test_grading_and_inputs_that_are_none(document, run, tmp_path):
    log = FOLDER / "w4_n96_k256_g64_error.log"
    assert document("explain-log", log, "--exit-zero")[0] == 0
    for path in (tmp_path / "no.log", tmp_path):
        code, report = document("explain-log", path)
        assert (code, report["inputs"][0]["format"]) == (3, "unknown")
        assert str(tmp_path) not in str(report)
    assert document("explain-log", log, "--mlir", tmp_path / "no.mlir")[0] == 3
    (tmp_path / "b.mlir").write_text("no module")
    assert document("explain-log", log, "--mlir", tmp_path / "b.mlir")[0] == 3
    (tmp_path / "x.log").write_bytes(bytes(range(256)) * 99 + b"\x1b[31m invalid scale channel")
    text = run("explain-log", tmp_path / "x.log").stdout
    assert "\x1b" not in text

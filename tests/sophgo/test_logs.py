"""A compiler's log, alone, with its `.mlir` beside it, and with several blocks mixed."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from qassay.core.errors import InputError
from qassay.runtimes.sophgo import logs
from qassay.runtimes.sophgo.logs import LONGEST_LINE, explain, explain_file

NAMES = ("w4_n96_k256_g64", "w4_n16_k256_g64", "f32_n16_k256")


@pytest.fixture
def folder(tpu_folder: Path) -> Path:
    return tpu_folder / "bm1684x-1.28.1"


def test_with_the_mlir_beside_it(folder: Path) -> None:
    report = explain_file(folder / "w4_n96_k256_g64_error.log")
    (block,) = report.blocks
    assert block.failure is not None
    assert (block.failure.id, block.failure.condition) == ("scale-channel", "N % P == 0")
    assert block.stage == "weight-reorder"
    assert block.command.startswith("tpuc-opt w4_n96_k256_g64_bm1684x_w4bf16_pre.mlir --init")
    assert block.command.endswith("-o w4_n96_k256_g64_bm1684x_w4bf16_reorder.mlir")
    assert block.input_mlir == "w4_n96_k256_g64_bm1684x_w4bf16_pre.mlir"
    assert block.error is not None
    assert block.error.text == "invalid scale channel"
    assert block.error.file.endswith("WeightReorder/BM1684X/A16MatMul.cpp")
    assert block.error.file_line == 274
    assert block.weight_file == "w4_n96_k256_g64_tpu_lowered_bm1684x_w4bf16_weight.npz"
    (layer,) = block.layers
    assert (layer.name, layer.n, layer.k, layer.q_group_size) == ("linear0", 96, 256, 64)
    assert block.chip == "bm1684x"
    assert block.layer_note == "1 of 1 A16MatMul have N % 64 != 0"
    assert (report.one_shape, report.shapes, report.unclaimed) == (True, ((96, 256),), [])


def test_alone(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "w4_n96_k256_g64_error.log", tmp_path / "build.log")
    report = explain_file(tmp_path / "build.log")
    (block,) = report.blocks
    assert block.failure is not None
    assert block.failure.id == "scale-channel"
    assert (block.stage, block.input_mlir) == (
        "weight-reorder",
        "w4_n96_k256_g64_bm1684x_w4bf16_pre.mlir",
    )
    assert block.layer_note.startswith("layer not in the log")
    assert (block.layers, block.weight_file, report.one_shape) == ((), "", None)


def mixed(folder: Path, seed: int) -> list[str]:
    """Mix the lines of three failing blocks; each block's own lines keep their order."""
    rng = random.Random(seed)
    queues = [(folder / f"{name}_error.log").read_text().splitlines() for name in NAMES]
    lines = []
    while any(queues):
        lines.append(rng.choice([one for one in queues if one]).pop(0))
    return lines


@pytest.mark.parametrize("seed", range(20))
def test_three_blocks_mixed(folder: Path, tmp_path: Path, seed: int) -> None:
    log = tmp_path / "build.log"
    log.write_text("\n".join(mixed(folder, seed)))
    report = explain_file(log, folder)
    assert len(report.blocks) == 3
    assert not report.unclaimed
    for block in report.blocks:
        name = next(one for one in NAMES if block.input_mlir.startswith(one))
        assert block.input_mlir == f"{name}_bm1684x_w4bf16_pre.mlir"
        assert f"-o {name}_bm1684x_w4bf16_reorder.mlir" in block.command
        assert block.weight_file == f"{name}_tpu_lowered_bm1684x_w4bf16_weight.npz"
        assert block.error is not None
        assert (block.error.text, block.error.file_line) == ("invalid scale channel", 274)
        assert [one.n for one in block.layers] == [96 if "n96" in name else 16]
    assert report.one_shape is False
    assert set(report.shapes) == {(96, 256), (16, 256)}


def test_one_shape(folder: Path) -> None:
    from qassay.runtimes.sophgo.mlir import read_mlir

    lines = [line for line in mixed(folder, 1) if "n96" not in line]
    report = explain(lines, lambda name: read_mlir(folder / name))
    assert len(report.blocks) == 2
    assert report.one_shape is True


def test_lines_that_ran_into_one(folder: Path) -> None:
    calls = [line for line in mixed(folder, 2) if "Program arguments" in line]
    place = "UNREACHABLE executed at /x/A16MatMul.cpp:274!"
    report = explain(["invalid scale channel" * 3, "", place + place, place, *calls])
    assert [one.error.file_line for one in report.blocks if one.error] == [274] * 3


LOWER = (
    '[Running]: tpuc-opt {n}.mlir --processor-assign="chip=bm1688 mode=W4BF16"'
    ' --convert-top-to-tpu="weightFileName={n}_w.npz asymmetric=False" -o {n}_tpu.mlir'
)
OPTIMIZE = "[Running]: tpuc-opt {n}_tpu.mlir --processor-tpu-optimize -o {n}_opt.mlir"
REORDER = "[Running]: tpuc-opt {n}_opt.mlir --weight-reorder -o {n}_re.mlir"
GROUP = (
    '[Running]: tpuc-opt {n}_re.mlir --layer-group="opt=2"'
    " --after-layergroup-weight-reorder --address-assign -o {n}_final.mlir"
)
CODEGEN = '[Running]: tpuc-opt {n}_final.mlir --codegen="model_file={n}.bmodel" -o /dev/null'


def failed(line: str) -> str:
    return line.replace("[Running]:", "RuntimeError: [!Error]:")


def test_the_chain_of_commands() -> None:
    lines = []
    for step in (LOWER, OPTIMIZE, REORDER):
        for name in ("block_2", "block_8"):
            lines.append(step.format(n=name))
            if step is not REORDER:
                lines.append(step.format(n=name).replace("Running", "Success"))
    lines += ["invalid scale channel", "UNREACHABLE executed at /w/A16MatMul.cpp:274!"]
    lines += [failed(REORDER.format(n="block_8"))]
    (block,) = explain(lines).blocks
    assert (block.origin, block.chip, block.stage) == ("block_8.mlir", "bm1688", "weight-reorder")
    assert (block.weight_file, block.weight_file_from) == ("block_8_w.npz", "lowering")
    assert block.failure is not None
    assert block.failure.id == "scale-channel"


def test_codegen_failures() -> None:
    bias = [
        "[0][ERR] !has_bias || bias_dtype == DT_FP32failed!",
        "[0]/workspace/x/local_layer/nodechip_batch_matmul_local.c:449:",
    ]
    size = [
        '[0][ERR] weight_col % q_group_size == 0 && "invalid weight size"failed!',
        "[0]/workspace/x/nodechip_a16_matmul.c:295:",
    ]
    for lines, name, at in ((bias, "bias-type", 449), (size, "weight-size", 295)):
        report = explain(
            [GROUP.format(n="c"), CODEGEN.format(n="c"), *lines, failed(CODEGEN.format(n="c"))]
        )
        (block,) = report.blocks
        assert block.stage == "codegen"
        assert block.error is not None
        assert block.failure is not None
        assert (block.failure.id, block.error.file_line) == (name, at)
    # two blocks, two kinds, no telling which is whose
    both = [*bias, *size, *(failed(CODEGEN.format(n=n)) for n in "ab")]
    report = explain(both)
    assert [one.error for one in report.blocks] == [None, None]
    assert [len(one.possible) for one in report.blocks] == [2, 2]
    assert [one.failure for one in report.blocks] == [None, None]
    # stages tell them apart
    lines = [
        *bias,
        "invalid scale channel",
        failed(CODEGEN.format(n="a")),
        failed(REORDER.format(n="b")),
    ]
    assert [one.failure.id for one in explain(lines).blocks if one.failure] == [
        "bias-type",
        "scale-channel",
    ]


def test_nobody_named_himself() -> None:
    report = explain([REORDER.format(n="a"), "invalid scale channel"])
    assert [one.input_mlir for one in report.blocks] == ["a_opt.mlir"]
    report = explain([REORDER.format(n="a"), REORDER.format(n="b"), "invalid scale channel"])
    assert report.blocks == []
    assert [one.text for one in report.unclaimed] == ["invalid scale channel"]
    assert explain(["all is well", REORDER.format(n="a")]).blocks == []


def test_an_unknown_failure_is_not_decoded_as_a_known_one() -> None:
    lines = ["shape is illegal", "UNREACHABLE executed at /w/Top/Interfaces/MatMul.cpp:328!"]
    command = "0.\tProgram arguments: tpuc-opt x_origin.mlir --init --shape-infer -o x.mlir"
    (block,) = explain([*lines, command]).blocks
    assert block.failure is None
    assert block.error is not None
    assert block.error.text.startswith("shape is illegal: UNREACHABLE")
    assert (block.stage, block.error.file_line) == ("top-optimize", 328)
    # its source line does not go to another block's error
    other = "Program arguments: tpuc-opt y_pre.mlir --weight-reorder -o y.mlir"
    report = explain(["invalid scale channel", *lines, command, other])
    assert report.blocks[1].failure is not None
    assert report.blocks[1].error is not None
    assert report.blocks[1].error.file == ""


def test_huge_and_hostile_logs(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    word = b"invalid scale channel "
    log.write_bytes(
        b"a.c:1" * 40_000 + b"\n" + word * 50_000 + b"\n" + b"\0\xff" * 100_000 + b"\n"
        + b"/" * 400_000 + b".c:1 UNREACHABLE executed at\n"
        + b"Program arguments: tpuc-opt " + b"a.mlir " * 20_000 + b"\n"
        + b"".join(b"Program arguments: tpuc-opt b%d.mlir --codegen\n" % i for i in range(3000))
        + b"[0][ERR] x failed!\n" * 3000
        + b"[Running]: tpuc-opt \x1b[2J.mlir --codegen -o \x1b[2J.mlir\n"
        + b"[!Error]: tpuc-opt\n[!Error]:\nProgram arguments: \n"
    )  # fmt: skip
    begin = time.monotonic()
    report = explain_file(log)
    assert time.monotonic() - begin < 20
    assert report.cut_lines == 5
    assert report.dropped > 2000
    assert len(report.blocks) == 1024
    assert all(len(one.command) <= LONGEST_LINE for one in report.blocks)
    assert all("\x1b" not in one.input_mlir for one in report.blocks)
    with pytest.raises(InputError):
        explain_file(tmp_path / "gone.log")
    with pytest.raises(InputError):
        explain_file(tmp_path)


def test_a_long_chain_is_followed_for_a_while() -> None:
    # of thousands of failing commands, each would be followed back over all before it
    line = "[Running]: tpuc-opt b{}.mlir --weight-reorder -o b{}.mlir"
    lines = [line.format(i, i + 1) for i in range(100)]
    (block,) = explain([*lines, failed(line.format(100, 101))]).blocks
    assert block.origin == "b36.mlir"
    (block,) = explain([*lines[60:], failed(line.format(100, 101))]).blocks
    assert block.origin == "b60.mlir"


def test_empty_lines_change_nothing_and_cost_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = list(folder.glob("w4_n96_k256_g64_error.log"))
    lines = log.read_text().splitlines(keepends=True)
    spread = [part for line in lines for part in (line, "\n", " \t\r\n")]
    one, other = explain(lines), explain(spread)
    assert one.blocks
    assert other.lines == 3 * one.lines
    assert [block.command for block in other.blocks] == [block.command for block in one.blocks]
    assert [block.failure for block in other.blocks] == [block.failure for block in one.blocks]
    # a log may have millions of them: no search looks at one
    monkeypatch.setattr(logs, "command_in", lambda line: pytest.fail(repr(line)))
    assert explain(["\n", "\r\n", " \n"] * 1000).lines == 3000


def test_names_in_a_log_lead_nowhere_else(tmp_path: Path, folder: Path) -> None:
    inner = tmp_path / "logs"
    inner.mkdir()
    name = "w4_n96_k256_g64_bm1684x_w4bf16_pre.mlir"
    shutil.copy(folder / name, tmp_path / name)
    log = inner / "build.log"
    log.write_text(
        f"invalid scale channel\nProgram arguments: tpuc-opt ../{name} --weight-reorder -o a.mlir\n"
    )
    (block,) = explain_file(log).blocks
    assert block.layer_note.startswith("layer not in the log")
    # a .mlir that is broken is as good as none
    (inner / name).write_text("module @x attributes {")
    assert explain_file(log).blocks[0].layer_note.startswith("layer not in the log")

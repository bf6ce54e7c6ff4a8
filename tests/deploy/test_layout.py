"""`qassay layout`: equal to what the compiler wrote, there and back, for every chip at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from by_hand import TPU, checkpoint, stored

from qassay.runtimes.sophgo.bfloat16 import bf16_bits

OLD, NEW, CHIPS = TPU / "bm1684x-1.28.1", TPU / "bm1684x-1.30.2", TPU / "chips-1.30.2"
N128 = OLD / "w4_n128_k256_g64"


def beside(start: Path, end: str) -> Path:
    return start.with_name(start.name + end)


def origin(start: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(beside(start, "_w.npz")) as kept:
        return bf16_bits(kept["scales"]), kept["qzeros"]


def test_into_the_order_of_the_device(document, tmp_path):
    source = beside(N128, "_tpu_lowered_bm1684x_w4bf16_weight.npz")
    text = beside(N128, "_bm1684x_w4bf16_pre.mlir")
    code, report = document(
        "layout", source, tmp_path / "o.npz", "--on", "sophgo:bm1684x@1.28.1", "--mlir", text
    )
    assert code == 0, report
    [moved] = report["result"]["moved"]
    assert (moved["before"], moved["after"], moved["layout"]) == ([128, 4], [64, 2, 4], "plain")
    assert (report["result"]["proven"], moved["certainty"], moved["note"]) == (True, "proven", "")
    after = beside(N128, "_tpu_reordered_bm1684x_w4bf16_weight.npz")
    with np.load(tmp_path / "o.npz") as ours, np.load(after) as theirs, np.load(source) as old:
        assert set(ours.files) == set(old.files)
        for mine, name in (("scales_bf16", "linear0_reordered"),
                           ("linear0_zp", "linear0_1_reordered")):  # fmt: skip
            assert ours[mine].dtype == old[mine].dtype  # int8 for bytes, in this very file
            moved_bits = ours[mine].reshape(-1).view(theirs[name].dtype)
            np.testing.assert_array_equal(moved_bits, theirs[name])
            assert not np.array_equal(ours[mine].reshape(-1), old[mine].reshape(-1))
        for name in set(old.files) - {"scales_bf16", "linear0_zp"}:
            np.testing.assert_array_equal(ours[name], old[name])


BACK = [
    (OLD / "w4_n128_k256_g64", "bm1684x", "1.28.1", "w4bf16"),
    (OLD / "w4_n192_k256_g128", "bm1684x", "1.28.1", "w4bf16"),
    (OLD / "w8_n128_k256_g64", "bm1684x", "1.28.1", "w8bf16"),
    (NEW / "w4_n64_k256_g64", "bm1684x", "1.30.2", "w4bf16"),
    (NEW / "w4_n96pad128_k256_g64", "bm1684x", "1.30.2", "w4bf16"),
    (CHIPS / "m192", "bm1684x", "1.30.2", "w4bf16"),
    (CHIPS / "m192", "bm1688", "1.30.2", "w4bf16"),
    (CHIPS / "m192", "cv184x", "1.30.2", "w4bf16"),
    (CHIPS / "m192", "bm1684x2", "1.30.2", "w4bf16"),
]


@pytest.mark.parametrize(("start", "chip", "version", "mode"), BACK)
def test_out_of_the_order_of_the_device(document, tmp_path, start, chip, version, mode):
    source = beside(start, f"_tpu_reordered_{chip}_{mode}_weight.npz")
    text = beside(start, f"_{chip}_{mode}_reorder.mlir")
    on = ("--on", f"sophgo:{chip}@{version}")
    code, report = document("layout", source, tmp_path / "o.npz", *on, "--mlir", text, "--inverse")
    assert code == 0, report
    [moved] = report["result"]["moved"]
    scales, zeros = origin(start)
    with np.load(tmp_path / "o.npz") as ours:
        np.testing.assert_array_equal(ours[moved["scale"]], scales)
        np.testing.assert_array_equal(ours[moved["zero_point"]], zeros)
    # and in again, without the text: what the compiler wrote
    group = 256 // scales.shape[1]
    code, report = document(
        "layout", tmp_path / "o.npz", tmp_path / "p.npz", *on, "--group-size", group,
        "--weight-bits", mode[1], "--scale", moved["scale"], "--zero-point", moved["zero_point"],
    )  # fmt: skip
    assert code == 0, report
    with np.load(tmp_path / "p.npz") as ours, np.load(source) as theirs:
        assert set(ours.files) == set(theirs.files)
        for name in theirs.files:
            np.testing.assert_array_equal(ours[name].reshape(-1), theirs[name].reshape(-1))


def test_flat_arrays_need_a_shape(document, run, tmp_path):
    source = beside(CHIPS / "m192", "_tpu_reordered_bm1688_w4bf16_weight.npz")
    line = ("layout", source, tmp_path / "o.npz", "--on", "sophgo:bm1688", "--inverse",
            "--zero-point", "linear0_1_reordered")  # fmt: skip
    result = run(*line)
    assert result.exit_code == 2
    assert "--shape" in result.stderr
    code, _ = document(*line, "--shape", "192,4")
    assert code == 0
    with np.load(tmp_path / "o.npz") as ours:
        np.testing.assert_array_equal(ours["linear0_reordered"], origin(CHIPS / "m192")[0])
    assert "another shape" in run(*line[:2], tmp_path / "q.npz", *line[3:],
                                  "--shape", "192,8").stderr  # fmt: skip


def test_single_arrays(document, tmp_path):
    scales, zeros = origin(N128)
    np.save(tmp_path / "s.npy", scales)
    np.save(tmp_path / "z.npy", zeros)
    after = beside(N128, "_tpu_reordered_bm1684x_w4bf16_weight.npz")
    for name, theirs in (("s", "linear0_reordered"), ("z", "linear0_1_reordered")):
        code, report = document(
            "layout", tmp_path / f"{name}.npy", tmp_path / f"{name}2.npy", "--on", "sophgo:bm1684x"
        )
        assert code == 0, report
        moved = np.load(tmp_path / f"{name}2.npy")
        with np.load(after) as kept:
            np.testing.assert_array_equal(moved.reshape(-1), kept[theirs])
        code, _ = document(
            "layout", tmp_path / f"{name}2.npy", tmp_path / f"{name}3.npy", "--inverse",
            "--on", "sophgo:bm1684x",
        )  # fmt: skip
        assert code == 0
        np.testing.assert_array_equal(
            np.load(tmp_path / f"{name}3.npy"), np.load(tmp_path / f"{name}.npy")
        )


def test_one_array_is_not_enough_where_both_are_interleaved(run, tmp_path):
    np.save(tmp_path / "s.npy", origin(N128)[0])
    result = run("layout", tmp_path / "s.npy", tmp_path / "t.npy", "--on", "sophgo:cv184x")
    assert result.exit_code == 2
    assert "both are needed" in result.stderr


def test_safetensors(document, tmp_path):
    scales, zeros = origin(N128)
    arrays = {"s": scales.view(np.float16), "z": zeros, "other": np.arange(5, dtype=np.int32)}
    source = checkpoint(tmp_path / "a", arrays) / "model.safetensors"
    code, report = document("layout", source, tmp_path / "o.safetensors", "--on", "sophgo:bm1684x")
    assert code == 0, report
    assert report["result"]["moved"][0]["half"] == "f16"
    ours = stored(tmp_path, "o.safetensors")
    after = beside(N128, "_tpu_reordered_bm1684x_w4bf16_weight.npz")
    with np.load(after) as kept:
        np.testing.assert_array_equal(
            ours["s"].view(np.uint16).reshape(-1), kept["linear0_reordered"]
        )
        np.testing.assert_array_equal(ours["z"].reshape(-1), kept["linear0_1_reordered"])
    np.testing.assert_array_equal(ours["other"], np.arange(5))


def test_lanes_that_do_not_divide(document, run, tmp_path):
    start = OLD / "w4_n96_k256_g64"
    line = (
        "layout", beside(start, "_tpu_lowered_bm1684x_w4bf16_weight.npz"), tmp_path / "o.npz",
        "--on", "sophgo:bm1684x@1.28.1", "--mlir", beside(start, "_bm1684x_w4bf16_pre.mlir"),
    )  # fmt: skip
    code, report = document(*line)
    assert code == 1
    [finding] = report["findings"]
    assert (finding["code"], finding["name"]) == ("Q701", "runtime-rejects")
    assert finding["message"].startswith("invalid scale channel")
    assert finding["data"]["layers"] == ["linear0"]
    assert (finding["data"]["stage"], finding["data"]["step"]) == ("compile", "weight-reorder")
    assert "128" in finding["help"]
    assert report["result"]["written"] is False
    assert not (tmp_path / "o.npz").exists()
    # of the same layer with 32 lanes there is an order
    assert run(*line[:3], "--on", "sophgo:bm1688", "--scale", "scales_bf16", "--zero-point",
               "linear0_zp", "--shape", "96,4").exit_code == 0  # fmt: skip


def test_what_is_refused_as_usage(run, tmp_path):
    source = beside(N128, "_tpu_lowered_bm1684x_w4bf16_weight.npz")
    text = beside(N128, "_bm1684x_w4bf16_pre.mlir")
    (tmp_path / "there.npz").write_bytes(b"x")
    on = ("--on", "sophgo:bm1684x")
    lines = {
        (source, tmp_path / "there.npz", *on, "--mlir", text): "already",
        (source, tmp_path / "o.npy", *on, "--mlir", text): "one kind",
        (source, tmp_path / "o.npz", *on): "several arrays",
        (source, tmp_path / "o.npz", *on, "--mlir", text, "--inverse"): "not yet",
        (source, tmp_path / "o.npz", "--on", "sophgo:bm1688", "--mlir", text): "another chip",
        (source, tmp_path / "o.npz", *on, "--scale", "nope"): "no such array",
        (source, tmp_path / "o.npz", *on, "--scale", "linear0_zp"): "no 16-bit",
        (source, tmp_path / "o.npz", *on, "--mlir", beside(N128, ".mlir")): "not 16 bits",
        (beside(N128, "_in.npz"), tmp_path / "o.npz", *on, "--mlir", text): "no array",
        (source, tmp_path / "o.npz", *on, "--shape", "0,4"): "N,K/g",
    }
    for line, words in lines.items():
        result = run("layout", *line)
        assert result.exit_code == 2, (line, result.output)
        assert words in result.stderr, result.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["there.npz"]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04junk", b"\x93NUMPY\x01\x00\xff\xff{", b"\0" * 99]
)
def test_files_that_are_none(document, tmp_path, suffix, data):
    (tmp_path / f"a{suffix}").write_bytes(data)
    code, report = document(
        "layout", tmp_path / f"a{suffix}", tmp_path / f"b{suffix}", "--on", "sophgo:bm1684x"
    )
    assert (code, report["verdict"]) == (3, "incomplete")
    assert not (tmp_path / f"b{suffix}").exists()


def test_objects_are_not_unpickled(document, run, tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{"x": 1}], dtype=object))
    line = ("layout", tmp_path / "a.npz", tmp_path / "b.npz", "--on", "sophgo:bm1684x")
    assert run(*line).exit_code == 2  # neither scales nor zero points
    np.save(tmp_path / "a.npy", np.array([{"x": 1}], dtype=object), allow_pickle=True)
    code, report = document("layout", tmp_path / "a.npy", tmp_path / "b.npy", *line[3:])
    assert (code, report["inputs"][0]["format"]) == (3, "unknown")


@pytest.mark.parametrize(
    "what", ["twice", "bomb", "../../x.npy", "a/../../x", "a\\..\\x.npy", ".."]
)
def test_archives_that_cannot_be_trusted(document, tmp_path, what):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        if what == "twice":
            archive.writestr("x.npy", b"")
            archive.writestr("x", b"")
        elif what != "bomb":
            archive.writestr("s.npy", b"")
            archive.writestr(what, b"")
        else:
            with archive.open("x.npy", "w") as stream:
                for _ in range(17):
                    stream.write(bytes(1 << 24))
    code, report = document(
        "layout", tmp_path / "a.npz", tmp_path / "b.npz", "--on", "sophgo:bm1684x"
    )
    assert (code, report["verdict"]) == (3, "incomplete")
    assert "cannot be trusted" in str(report)
    assert ("leads out of a folder" in str(report)) == (what not in ("twice", "bomb"))
    assert not (tmp_path / "b.npz").exists()


def test_names_with_slashes_and_dots_are_names(document, tmp_path):
    # tpu-mlir names arrays after the operations of an ONNX file
    scales, zeros = origin(N128)
    names = ("/model/layers.0/MatMul..scale", "...")
    np.savez(tmp_path / "a.npz", **{names[0]: scales, names[1]: zeros})
    code, report = document(
        "layout", tmp_path / "a.npz", tmp_path / "b.npz", "--on", "sophgo:bm1684x"
    )
    assert code == 0, report
    with np.load(tmp_path / "b.npz") as ours:
        assert set(ours.files) == set(names)


def test_a_disk_without_room(run, tmp_path, monkeypatch):
    from qassay.run import layout_files

    scales, zeros = origin(N128)
    np.savez(tmp_path / "a.npz", s=scales, z=zeros)
    usage = type(layout_files.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(layout_files.shutil, "disk_usage", lambda _: usage(9, 8, 1))
    result = run("layout", tmp_path / "a.npz", tmp_path / "b.npz", "--on", "sophgo:bm1684x")
    assert result.exit_code == 2
    assert "too little room" in result.stderr
    assert "found 1. Fix: make room" in result.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["a.npz"]


def test_a_name_that_leads_in_a_circle_and_one_that_is_taken(run, tmp_path):
    np.save(tmp_path / "a.npy", origin(N128)[0])
    (tmp_path / "b.npy").symlink_to("c.npy")
    (tmp_path / "c.npy").symlink_to("b.npy")
    (tmp_path / "d.npy").write_bytes(b"x")
    line = ("layout", tmp_path / "a.npy")
    result = run(*line, tmp_path / "b.npy", "--on", "sophgo:bm1684x")
    assert (result.exit_code, "cannot be written" in result.stderr) == (2, True)
    result = run(*line, tmp_path / "d.npy", "--on", "sophgo:bm1684x")
    assert (result.exit_code, "already" in result.stderr) == (2, True)
    assert "--force" not in result.stderr  # there is no such option here
    assert (tmp_path / "d.npy").read_bytes() == b"x"


def test_tp_of_a_check_needs_a_runtime(run, tmp_path):
    result = run("check", tmp_path, "--tp", "2")
    assert (result.exit_code, "name it with --on" in result.stderr) == (2, True)

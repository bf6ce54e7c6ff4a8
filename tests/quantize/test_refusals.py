"""What is not written, why, and that nothing is left behind then."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.core.errors import UsageError
from qassay.run.model import Model
from qassay.run.quantize import QuantizeOptions, quantize
from qassay.run.quantize_plan import Wish
from qassay.runtimes.registry import all_engines
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors

OUT = Path("out.gguf")


def listing() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


@pytest.fixture
def sick(one_tensor, weights):
    values = weights(16, 64)
    values[3, 5], values[9, 40], values[9, 41] = np.nan, np.inf, -np.inf
    return one_tensor(values, "sick.safetensors")


def nothing_left(before: list[str]) -> bool:
    return listing() == before


@pytest.fixture
def refuse(run, floats, sick):
    """Run a quantization that must fail in one line and leave nothing."""
    before = listing()

    def call(*args: object, code: int = 2) -> str:
        result = run(*args, code=code)
        assert nothing_left(before)
        lines = result.stderr.strip().splitlines()
        assert lines[-1].startswith("Error: ")
        assert len(lines) == 1 or lines[0].startswith("Usage")
        return lines[-1]

    return call


def test_a_source_with_nan_is_refused(run, document, sick):
    result = run(sick, OUT, "--to", "Q8_0", code=1)
    assert "Nothing was written" in result.stdout
    assert "--allow Q401,Q504" in result.stdout
    assert not OUT.exists()
    made = document(sick, OUT, "--to", "Q8_0", code=1)
    assert made["result"]["quantize"]["written"] is False
    assert made["result"]["quantize"]["refused"] == ["Q401", "Q504"]
    assert made["verdict"] == "findings"
    for words in (["--exit-zero"], ["--fail-on", "never"]):
        run(sick, OUT, "--to", "Q8_0", *words, code=1)
    assert not OUT.exists()


def test_a_source_with_nan_is_written_when_allowed_and_reported(document, run, sick):
    made = document(sick, OUT, "--to", "F16", "--allow", "q401")
    told = made["result"]["quantize"]
    [tensor] = told["tensors"]
    assert told["allowed"] == ["Q401"]
    assert (tensor["nonfinite_source"], tensor["nonfinite_result"]) == (3, 3)
    assert tensor["compared"] == 16 * 64 - 3
    assert 0 < tensor["rmse"] < 1e-4
    found = {(each["path"], each["code"]): each["severity"] for each in made["findings"]}
    assert found["sick.safetensors", "Q401"] == "warning"
    assert found["out.gguf", "Q401"] == "warning"
    assert made["verdict"] == "findings"
    with Model.open(OUT) as new:
        assert list(new.metadata["qassay.allowed"]) == ["Q401"]
    run(sick, OUT, "--to", "F16", "--allow", "Q401", "--force", "--fail-on", "warning", code=1)


def test_errors_that_quantizing_makes_of_allowed_values_still_fail(document, sick):
    """candle and ggml make NaN scales of them: Q201 in the new file was not allowed."""
    made = document(sick, OUT, "--to", "Q8_0", "--allow", "Q401,Q504", code=1)
    assert made["result"]["quantize"]["written"] is True
    assert "Q201" in {each["code"] for each in made["findings"] if each["path"] == "out.gguf"}
    text = {each["nonfinite_result"] for each in made["result"]["quantize"]["tensors"]}
    assert text != {0}


def test_a_configured_severity_counts(run, sick):
    Path("pyproject.toml").write_text('[tool.qassay]\nseverity = { Q401 = "warning" }\n')
    run(sick, OUT, "--to", "F16")
    assert OUT.exists()


def test_destinations(refuse, floats, run):
    assert "ends in .gguf" in refuse(floats, "out.bin", "--to", "Q8_0")
    assert "no folder" in refuse(floats, "nowhere/out.gguf", "--to", "Q8_0")
    assert refuse("missing.safetensors", "nowhere/out.gguf", "--to", "Q8_0")
    run("missing.safetensors", "out.gguf", "--to", "Q8_0", code=3)
    assert not OUT.exists()


def test_the_source_is_never_replaced(run, gguf_floats, tmp_path):
    before = gguf_floats.read_bytes()
    (tmp_path / "soft.gguf").symlink_to(gguf_floats)
    (tmp_path / "hard.gguf").hardlink_to(gguf_floats)
    for name in (gguf_floats, gguf_floats.name, "soft.gguf", "hard.gguf"):
        result = run(gguf_floats, name, "--to", "Q8_0", "--force", code=2)
        assert "would replace the source" in result.stderr
    run(tmp_path, gguf_floats.name, "--to", "Q8_0", "--force", code=2)
    assert gguf_floats.read_bytes() == before


def test_an_existing_file_is_replaced_only_by_force(run, floats):
    OUT.write_bytes(b"mine")
    OUT.chmod(0o640)
    assert "--force" in run(floats, OUT, "--to", "Q8_0", code=2).stderr
    assert OUT.read_bytes() == b"mine"
    run(floats, OUT, "--to", "Q8_0", "--force")
    assert OUT.read_bytes()[:4] == b"GGUF"
    assert listing() == ["floats.safetensors", "out.gguf"]


def test_a_file_that_appears_meanwhile_is_not_replaced(floats, monkeypatch):
    from qassay.containers import gguf_out

    commit = gguf_out.GgufWriter._commit

    def meanwhile(self):
        OUT.write_bytes(b"theirs")
        commit(self)

    monkeypatch.setattr(gguf_out.GgufWriter, "_commit", meanwhile)
    with pytest.raises(UsageError, match="made a file of this name meanwhile"):
        quantize(floats, OUT, QuantizeOptions(Wish.parse("ggml", "Q8_0")))
    assert OUT.read_bytes() == b"theirs"
    assert listing() == ["floats.safetensors", "out.gguf"]


def test_a_system_without_hard_links_still_gets_its_file(run, floats, monkeypatch):
    def refused(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    run(floats, OUT, "--to", "Q8_0")
    assert listing() == ["floats.safetensors", "out.gguf"]


def test_the_umask_decides_who_may_read(run, floats):
    before = os.umask(0o027)
    try:
        run(floats, OUT, "--to", "Q8_0")
    finally:
        os.umask(before)
    assert OUT.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("special", ["folder", "fifo"])
def test_what_is_no_file_is_not_replaced(run, floats, special):
    if special == "folder":
        OUT.mkdir()
    else:
        os.mkfifo(OUT)
    assert "no file" in run(floats, OUT, "--to", "Q8_0", "--force", code=2).stderr


def test_words_that_mean_nothing(refuse, floats):
    assert "no such engine" in refuse(floats, OUT, "--to", "Q8_0", "--engine", "none")
    assert "no type called Q8_9" in refuse(floats, OUT, "--to", "Q8_9")
    assert "does not write ggml.q4_k" in refuse(floats, OUT, "--to", "Q4_K", "--engine", "gguf-py")
    assert "write it with --engine ggml" in refuse(
        floats, OUT, "--to", "Q4_K", "--engine", "gguf-py"
    )
    assert "does not write i8" in refuse(floats, OUT, "--to", "i8")
    assert "no engine writes it" in refuse(floats, OUT, "--to", "IQ4_NL")
    assert "no engine writes it" in refuse(floats, OUT, "--to", "F8_E4M3")
    assert "for --to alone" in refuse(floats, OUT, "--to", "Q8_0", "--type-for", "up*=Q4_K_M")
    assert "matches no tensor" in refuse(floats, OUT, "--to", "Q8_0", "--type-for", "x*=Q8_0")
    assert "matches no tensor" in refuse(floats, OUT, "--to", "Q8_0", "--type-for", "UP*=Q8_0")
    assert "pattern and a type" in refuse(floats, OUT, "--to", "Q8_0", "--type-for", "up*")
    assert "no type called" in refuse(floats, OUT, "--to", "Q8_0", "--type-for", "up*=Q1")
    assert "no rule" in refuse(floats, OUT, "--to", "Q8_0", "--allow", "Q999")
    assert "cannot be allowed" in refuse(floats, OUT, "--to", "Q8_0", "--allow", "Q007")
    words = ["--type-for", "position*=Q8_0"]
    assert "holds integers" in refuse(floats, OUT, "--to", "Q8_0", *words)


def test_quantized_sources(run, document, floats, weights, tmp_path):
    run(floats, "q8.gguf", "--to", "Q8_0")
    assert "quantized already, as Q8_0" in run("q8.gguf", OUT, "--to", "Q4_0", code=2).stderr
    made = document("q8.gguf", OUT, "--to", "Q8_0")["result"]["quantize"]["tensors"]
    assert made[0]["from"] == made[0]["to"] == "ggml.q8_0"
    parts = [
        ("a.qweight", "I32", [4, 8], bytes(128)),
        ("a.scales", "F16", [1, 8], weights(1, 8).astype("<f2").tobytes()),
    ]
    (tmp_path / "gptq.safetensors").write_bytes(write_safetensors(parts, align=64))
    told = run("gptq.safetensors", "three.gguf", "--to", "Q4_0", code=2).stderr
    assert "quantized already: tensor 'a.qweight'" in told


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [("U8", [4, 8], 32), ("F32", [1, 1, 1, 2, 32], 256), ("F32", [0, 32], 0)],
)
def test_what_gguf_cannot_hold(run, tmp_path, dtype, shape, nbytes):
    data = np.ones(nbytes, np.uint8).tobytes()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(write_safetensors([("a.weight", dtype, shape, data)], align=64))
    assert "GGUF" in run(path, OUT, "--to", "Q8_0", code=2).stderr
    assert not OUT.exists()


def test_a_tensor_that_cannot_be_read_stops_the_work(run, tmp_path, weights):
    tensors = [
        ("known.weight", 0, (64, 4), weights(4, 64).tobytes()),
        ("unknown.weight", 16, (256,), bytes(66)),
    ]
    (tmp_path / "partly.gguf").write_bytes(write_gguf({}, tensors))
    result = run("partly.gguf", OUT, "--to", "Q8_0", code=3)
    assert "not all of the source could be checked" in result.stdout
    result = run("partly.gguf", OUT, "--to", "Q8_0", "--allow-incomplete", code=2)
    assert "No such option" in result.stderr
    assert not OUT.exists()


def test_allowing_incomplete_checks_elsewhere_writes_no_incomplete_file(run, tmp_path, weights):
    tensors = [
        ("known.weight", 0, (64, 4), weights(4, 64).tobytes()),
        ("unknown.weight", 16, (256,), bytes(66)),
    ]
    (tmp_path / "partly.gguf").write_bytes(write_gguf({}, tensors))
    (tmp_path / "pyproject.toml").write_text("[tool.qassay]\nallow-incomplete = true\n")
    run("partly.gguf", OUT, "--to", "Q8_0", code=3)
    assert not OUT.exists()


def test_two_types_for_one_file(refuse, floats):
    said = refuse(floats, OUT, "--to", "Q8_0", "--to", "Q4_0")
    assert "one type" in said
    assert "Missing option '--to'" in refuse(floats, OUT)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_source_without_tensors(run, tmp_path, kind):
    made = write_safetensors([]) if kind == "safetensors" else write_gguf({}, [])
    (tmp_path / f"empty.{kind}").write_bytes(made)
    said = run(f"empty.{kind}", OUT, "--to", "Q8_0", code=2).stderr
    assert "the source holds no tensors" in said
    assert not OUT.exists()


def test_rows_of_one_weight_are_told_so(document, tmp_path):
    column = np.ones(3, "<f4").tobytes()
    (tmp_path / "column.safetensors").write_bytes(
        write_safetensors([("a.weight", "F32", [3, 1], column)], align=64)
    )
    made = document("column.safetensors", OUT, "--to", "Q8_0")
    [told] = [each["message"] for each in made["findings"] if each["code"] == "Q505"]
    assert "rows of 1 weight are no whole number of 32-weight blocks (1 is left over)" in told


def test_a_truncated_source_is_refused_whatever_is_allowed(run, floats, tmp_path):
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(floats.read_bytes()[:-40])
    said = run(cut, OUT, "--to", "Q8_0", code=1).stdout
    assert "--allow does not help" in said
    assert "--allow Q001" not in said
    run(cut, OUT, "--to", "Q8_0", "--allow", "Q001", code=3)
    assert not OUT.exists()


def test_a_pattern_is_not_blamed_for_a_header_that_breaks_off(run, floats, tmp_path):
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(floats.read_bytes()[:60])
    result = run(cut, OUT, "--to", "Q8_0", "--type-for", "up*=Q4_0", code=1)
    assert "Q001" in result.stdout
    assert not result.stderr


def test_a_scalar_with_a_type_of_its_own(document, floats):
    made = document(floats, OUT, "--to", "Q8_0", "--type-for", "scalar=Q4_0")
    found = [each for each in made["findings"] if each["tensor"] == "scalar"]
    assert [(each["code"], each["data"]["row"]) for each in found] == [("Q505", 1)]
    tensors = {each["name"]: each["to"] for each in made["result"]["quantize"]["tensors"]}
    assert tensors["scalar"] == "f16"


def test_a_report_that_goes_nowhere_is_refused_before_the_work(refuse, floats):
    said = refuse(floats, OUT, "--to", "Q8_0", "-o", "none/report.json")
    assert "cannot be written" in said
    assert "--output-file" in said


def test_models_of_two_formats_in_one_folder(run, floats, gguf_floats, tmp_path):
    folder = tmp_path / "both"
    folder.mkdir()
    shutil.copy(floats, folder)
    shutil.copy(gguf_floats, folder / "other.gguf")
    assert "different formats" in run(folder, OUT, "--to", "Q8_0", code=2).stderr


def test_a_folder_that_may_not_be_written_to(run, floats, monkeypatch):
    from qassay.containers import new_file

    opened = os.open

    def refused(path, *rest):
        if str(path).endswith(".part"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest)

    monkeypatch.setattr(new_file.os, "open", refused)
    told = run(floats, OUT, "--to", "Q8_0", code=2).stderr
    assert told.count("Error:") == 1
    assert "out.gguf: the new file cannot be written: Permission denied" in told


def test_a_disk_too_small_is_refused_before_anything_is_written(run, floats, monkeypatch):
    from types import SimpleNamespace

    from qassay.containers import new_file

    monkeypatch.setattr(new_file.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    told = run(floats, OUT, "--to", "Q8_0", code=2).stderr
    assert "too little room" in told
    assert listing() == ["floats.safetensors"]


@pytest.mark.parametrize("limit", [4096, 1 << 20])
def test_a_disk_that_fills_up_leaves_nothing(spawn, one_tensor, weights, limit):
    """The limit on file size stands in for a full disk; it strikes at the buffer's flush."""
    source = one_tensor(weights(2048, 1024))
    process = spawn(
        source, OUT, "--to", "Q8_0",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    told = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 2, told
    assert told.count("\n") == 1
    assert "cannot be written: File too large" in told
    assert "make room" in told
    assert listing() == ["one.safetensors"]


def test_names_too_long_for_llama_cpp_are_said_before_the_work(document, run, weights):
    tensor = ("a." * 40 + "weight", "F32", [4, 64], weights(4, 64).tobytes())
    Path("long.safetensors").write_bytes(write_safetensors([tensor], align=64))
    made = document("long.safetensors", OUT, "--to", "Q8_0", code=1)
    assert made["result"]["quantize"]["refused"] == ["Q003"]
    assert "86 bytes" in made["findings"][0]["message"]
    assert not OUT.exists()
    run("long.safetensors", OUT, "--to", "Q8_0", "--allow", "Q003")
    assert OUT.exists()


def test_nobody_is_told_to_allow_what_cannot_be_allowed(run, tmp_path, weights):
    twice = tmp_path / "twice.safetensors"
    tensor = ("a", "F32", [1, 32], weights(1, 32).tobytes())
    twice.write_bytes(write_safetensors([tensor, tensor]))
    said = run(twice, OUT, "--to", "Q8_0", code=1).stdout
    assert "--allow does not help" in said
    assert "--allow Q007" not in said


def test_a_fix_names_a_type_or_none(run, one_tensor):
    source = one_tensor(np.full((1, 32), 3.4028234e38, np.float32))
    said = run(source, OUT, "--to", "BF16", code=1).stdout
    assert "Fix: keep this tensor as it is\n" in said


def test_two_tensors_of_one_name_are_refused_whatever_is_allowed(weights):
    tensors = [("a.weight", 0, (64, 4), weights(4, 64, seed).tobytes()) for seed in (0, 1)]
    Path("twice.gguf").write_bytes(write_gguf({}, tensors))
    options = QuantizeOptions(Wish.parse("ggml", "Q8_0"), allow=("Q007",))
    assert quantize("twice.gguf", OUT, options).refused == ("Q007",)
    assert not OUT.exists()


def test_the_longest_name_and_a_link(run, floats, tmp_path):
    name = "x" * 250 + ".gguf"
    run(floats, name, "--to", "Q8_0")
    assert Path(name).exists()
    (tmp_path / "elsewhere").mkdir()
    OUT.symlink_to(tmp_path / "elsewhere" / "real.gguf")
    run(floats, OUT, "--to", "Q8_0")
    assert OUT.is_symlink()
    assert (tmp_path / "elsewhere" / "real.gguf").read_bytes() == Path(name).read_bytes()


def test_help_names_every_engine(run):
    told = " ".join(run("--help").stdout.split())
    assert all(name in told for name in all_engines())


def test_help_imports_nothing_heavy():
    script = (
        "import sys\nfrom qassay.cli.main import cli\n"
        "try:\n    cli.main(['quantize', '--help'])\n"
        "except SystemExit:\n    print(sorted({'numpy', 'numba', 'rich'} & set(sys.modules)))\n"
    )
    root = str(Path(qassay.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.stdout.endswith("[]\n")
    assert "--type-for" in done.stdout

"""`qassay quantize --imatrix`: the bytes of libgguf, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.encodings import by_id
from qassay.run import quantize as run_quantize
from qassay.run.options import CheckOptions
from qassay.run.quantize import QuantizeOptions
from qassay.run.quantize_plan import Wish
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.imatrix_writer import write_imatrix, write_legacy_imatrix

UP, EXPS = "blk.0.ffn_up.weight", "blk.0.ffn_up_exps.weight"
TYPES = {
    name: by_id(name).stored_as[0].number
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
}
RNG = np.random.default_rng(7)
WEIGHTS = {
    UP: (RNG.standard_normal((6, 512)) * 0.02).astype(np.float32),
    EXPS: (RNG.standard_normal((3, 4, 256)) * 0.02).astype(np.float32),
    "token_embd.weight": (RNG.standard_normal((8, 256)) * 0.02).astype(np.float32),
}
SUMS = {UP: RNG.random((1, 512), np.float32) ** 4, EXPS: RNG.random((3, 256), np.float32) ** 4}


@pytest.fixture
def model() -> str:
    tensors = [(name, 0, each.shape[::-1], each.tobytes()) for name, each in WEIGHTS.items()]
    Path("m.gguf").write_bytes(write_gguf({"general.architecture": "llama"}, tensors))
    return "m.gguf"


def importance(**changed: object) -> str:
    entries = {UP: (SUMS[UP], [512.0]), EXPS: (SUMS[EXPS], [512.0, 100.0, 7.0])}
    entries.update({name: value for name, value in changed.items() if value is not None})
    Path("i.gguf").write_bytes(write_imatrix(entries))
    return "i.gguf"


@pytest.mark.parametrize("to", TYPES)
def test_bytes_of_libgguf(run, model, to) -> None:
    libgguf = pytest.importorskip("libgguf")
    code, document = run("quantize", model, "q.gguf", "--to", to, "--imatrix", importance())
    assert code == 0, document
    assert document["result"]["quantize"]["imatrix"] == "i.gguf"
    counts = {UP: [512.0], EXPS: [512.0, 100.0, 7.0]}
    for name, rows in WEIGHTS.items():
        experts = rows.reshape(-1, rows.shape[-2], rows.shape[-1])
        with qassay.open("q.gguf") as made:
            stored = np.array(made.tensors[name].raw()).reshape(len(experts), -1)
        for number, expert in enumerate(experts):
            known = name in SUMS
            mean = SUMS[name][number] / np.float32(counts[name][number]) if known else None
            expected = engine_bytes(libgguf, expert, to, mean)
            assert np.array_equal(stored[number], expected), (name, number)


def engine_bytes(libgguf, rows: np.ndarray, to: str, mean: np.ndarray | None) -> np.ndarray:
    if mean is None:
        return np.asarray(qassay.engine("ggml").quantize(rows, to)).reshape(-1)
    made = libgguf.quantize_rows(np.ascontiguousarray(rows), TYPES[to], imatrix=mean)
    return np.frombuffer(np.asarray(made).tobytes(), np.uint8)


def test_importance_changes_the_bytes_and_the_weighted_error(run, model) -> None:
    run("quantize", model, "plain.gguf", "--to", "Q2_K")
    run("quantize", model, "with.gguf", "--to", "Q2_K", "--imatrix", importance())
    errors = {}
    for path in ("plain.gguf", "with.gguf"):
        with qassay.open(path) as made:
            off = made.tensors[UP].dequantize() - WEIGHTS[UP]
            errors[path] = float((off * off * SUMS[UP]).sum())
    assert errors["with.gguf"] < errors["plain.gguf"]


@pytest.mark.parametrize("legacy", [False, True])
def test_chunks_and_threads_do_not_matter(model, legacy) -> None:
    path = importance()
    if legacy:
        path = "i.dat"
        Path(path).write_bytes(write_legacy_imatrix({UP: (SUMS[UP], 4), EXPS: (SUMS[EXPS], 4)}))
    made = []
    for chunk, jobs in ((1 << 20, 1), (256, 1), (1000, 3), (2048, 2)):
        options = QuantizeOptions(
            Wish.parse("ggml", "Q4_K"),
            overwrite=True,
            check=CheckOptions(jobs=jobs),
            chunk_weights=chunk,
            importance=path,
        )
        assert run_quantize.quantize(model, "q.gguf", options).written
        made.append(Path("q.gguf").read_bytes())
    assert made[0] == made[1] == made[2] == made[3]


def test_rows_longer_than_a_unit_are_whole(run) -> None:
    libgguf = pytest.importorskip("libgguf")
    rows = (RNG.standard_normal((2, 1 << 17)) * 0.02).astype(np.float32)
    sums = RNG.random((1, 1 << 17), np.float32)
    Path("m.gguf").write_bytes(
        write_gguf({"general.architecture": "llama"}, [(UP, 0, rows.shape[::-1], rows.tobytes())])
    )
    Path("i.gguf").write_bytes(write_imatrix({UP: (sums, [1.0])}))
    assert run("quantize", "m.gguf", "q.gguf", "--to", "Q4_0", "--imatrix", "i.gguf")[0] == 0
    with qassay.open("q.gguf") as made:
        stored = np.array(made.tensors[UP].raw())
    assert np.array_equal(stored, engine_bytes(libgguf, rows, "Q4_0", sums[0]))


def test_a_nan_is_refused_before_quantizing(run, model) -> None:
    bad = SUMS[UP].copy()
    bad[0, 9] = np.nan
    path = importance(**{UP: (bad, [512.0])})
    code, document = run("quantize", model, "q.gguf", "--to", "Q4_K", "--imatrix", path)
    assert code == 1
    assert not Path("q.gguf").exists()
    assert document["result"]["quantize"]["refused"] == ["Q507"]
    [finding] = [each for each in document["findings"] if each["code"] == "Q507"]
    assert (finding["tensor"], finding["severity"]) == (UP, "error")
    words = ("quantize", model, "q.gguf", "--to", "Q4_K", "--imatrix", path, "--allow", "Q507")
    code, document = run(*words)
    assert code == 0
    plain = qassay.engine("ggml").quantize(WEIGHTS[UP], "Q4_K")
    with qassay.open("q.gguf") as made:
        assert np.array_equal(made.tensors[UP].raw(), plain.reshape(-1))


def test_a_nan_for_a_tensor_of_a_type_without_importance_is_a_warning(run, model) -> None:
    bad = SUMS[UP].copy()
    bad[0, 9] = np.nan
    path = importance(**{UP: (bad, [512.0])})
    words = ("quantize", model, "q.gguf", "--to", "Q4_K", "--imatrix", path)
    code, document = run(*words, "--type-for", f"{UP}=Q8_0")
    assert code == 0
    assert [each["severity"] for each in document["findings"]] == ["warning"]


def test_gaps_are_said(run, model) -> None:
    Path("i.gguf").write_bytes(write_imatrix({UP: (SUMS[UP], [512.0])}))
    code, document = run("quantize", model, "q.gguf", "--to", "Q4_K", "--imatrix", "i.gguf")
    assert code == 0
    [finding] = document["findings"]
    assert finding["data"] == {"tensors": [EXPS], "weights": 2}


def test_the_new_file_says_so(run, model) -> None:
    run("quantize", model, "q.gguf", "--to", "Q4_K", "--imatrix", importance())
    with qassay.open("q.gguf") as made:
        assert made.metadata["quantize.imatrix.file"] == "i.gguf"
        assert made.metadata["quantize.imatrix.dataset"] == "wiki.txt"
        assert made.metadata["quantize.imatrix.entries_count"] == 2
        assert made.metadata["quantize.imatrix.chunks_count"] == 4
    gguf = pytest.importorskip("gguf")
    assert len(gguf.GGUFReader("q.gguf").tensors) == 3
    code, _ = run("quantize", model, "i2.gguf", "--to", "Q4_K")
    assert code == 0
    with qassay.open("i2.gguf") as made:
        assert "quantize.imatrix.file" not in made.metadata


@pytest.mark.parametrize("words", [("--to", "Q8_0"), ("--to", "Q4_0", "--engine", "gguf-py")])
def test_importance_that_nothing_uses_is_refused(run, model, words) -> None:
    code, said = run("quantize", model, "q.gguf", *words, "--imatrix", importance())
    assert code == 2
    assert "uses importance" in said["stderr"]


def test_the_importance_file_is_not_replaced(run, model) -> None:
    path = importance()
    before = Path(path).read_bytes()
    code, _ = run("quantize", model, path, "--to", "Q4_K", "--imatrix", path, "--force")
    assert code == 2
    assert Path(path).read_bytes() == before

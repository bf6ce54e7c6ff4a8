"""`GuardedGGUFWriter` writes what gguf's own writer writes, and refuses what is broken."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qassay

gguf = pytest.importorskip("gguf")


def weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(3).standard_normal(shape) * 0.02).astype(np.float32)


def write(writer: object, *tensors: tuple[object, ...]) -> None:
    for name, array, *kind in tensors:
        writer.add_tensor(name, array, raw_dtype=kind[0] if kind else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def q8_0(array: np.ndarray) -> np.ndarray:
    return gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q8_0)


def test_it_is_a_drop_in(tmp_path: Path) -> None:
    kinds = gguf.GGMLQuantizationType
    tensors = [
        ("a.weight", weights(4, 64)),
        ("b.weight", weights(4, 64).astype(np.float16)),
        ("c.weight", q8_0(weights(4, 64)), kinds.Q8_0),
        ("d.weight", gguf.quants.quantize(weights(4, 64), kinds.BF16), kinds.BF16),
        ("ids", np.arange(4, dtype=np.int32)),
    ]
    write(gguf.GGUFWriter(tmp_path / "plain.gguf", "llama"), *tensors)
    guarded = qassay.guards.GuardedGGUFWriter(tmp_path / "guarded.gguf", "llama", to="Q8_0")
    assert isinstance(guarded, gguf.GGUFWriter)
    write(guarded, *tensors)
    assert (tmp_path / "guarded.gguf").read_bytes() == (tmp_path / "plain.gguf").read_bytes()
    assert qassay.check(tmp_path / "guarded.gguf").verdict == "clean"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_broken_float_tensor_is_refused_and_not_added(tmp_path: Path, dtype: type) -> None:
    writer = qassay.guards.GuardedGGUFWriter(tmp_path / "m.gguf", "llama")
    bad = weights(4, 64).astype(dtype)
    bad[2, 3] = np.nan
    with pytest.raises(qassay.DamagedError, match=r"w\.weight") as caught:
        writer.add_tensor("w.weight", bad)
    assert caught.value.findings[0].location.row == 2
    write(writer, ("w.weight", weights(4, 64)))
    assert qassay.check(tmp_path / "m.gguf").verdict == "clean"


def test_a_broken_quantized_tensor_is_refused(tmp_path: Path) -> None:
    writer = qassay.guards.GuardedGGUFWriter(tmp_path / "m.gguf", "llama")
    bad = q8_0(weights(4, 64))
    bad[1, 34:36] = [0, 0x7E]
    with pytest.raises(qassay.DamagedError) as caught:
        writer.add_tensor("w.weight", bad, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    assert caught.value.findings[0].code == "Q201"
    assert caught.value.findings[0].location.block == 3


def test_the_target_type_counts_for_matrices(tmp_path: Path) -> None:
    small = weights(4, 64) * np.float32(1e-6)
    plain = qassay.guards.GuardedGGUFWriter(tmp_path / "m.gguf", "llama")
    plain.add_tensor("w.weight", small)
    aimed = qassay.guards.GuardedGGUFWriter(tmp_path / "n.gguf", "llama", to="Q8_0")
    with pytest.raises(qassay.DamagedError):
        aimed.add_tensor("w.weight", small)
    aimed.add_tensor("norm.weight", small[0])
    for writer in (plain, aimed):
        writer.close()


def test_rows_that_do_not_fit_are_judged_by_the_type_taken_instead(tmp_path: Path) -> None:
    writer = qassay.guards.GuardedGGUFWriter(tmp_path / "m.gguf", "llama", to="Q4_K")
    writer.add_tensor("narrow.weight", weights(4, 96))  # Q5_0
    writer.add_tensor("odd.weight", weights(4, 33))  # F16
    with pytest.raises(qassay.DamagedError, match="F16"):
        writer.add_tensor("large.weight", weights(4, 33) * np.float32(1e9))
    writer.close()


def test_a_type_that_there_is_not_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(qassay.UsageError, match="no encoding called Q4_K_M"):
        qassay.guards.GuardedGGUFWriter(tmp_path / "m.gguf", "llama", to="Q4_K_M")


def test_without_gguf_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "qassay.guards.writer", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(qassay.UsageError, match="pip install gguf"):
        _ = qassay.guards.GuardedGGUFWriter

"""The report does not depend on threads, chunks or kernels: byte for byte the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.encodings import BlockEncoding, all_encodings
from qassay.testing.gguf_writer import write_gguf

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of random bytes in every encoding: offences of every kind, everywhere."""
    rng = np.random.default_rng(11)
    tensors = []
    for encoding in all_encodings().values():
        numbers = [label.number for label in encoding.stored_as if hasattr(label, "number")]
        if not numbers:
            continue
        columns = 512
        for name, axes in ((encoding.id, [columns, 12]), (f"{encoding.id}.exps", [columns, 3, 4])):
            size = columns * 12 // encoding.block * encoding.block_bytes
            raw = rng.integers(0, 256, size, dtype=np.uint8)
            if issubclass(encoding, BlockEncoding):
                blocks = raw.reshape(-1, encoding.block_bytes)
                odd = rng.random(len(blocks)) < 0.5
                blocks[odd] = rng.choice(
                    np.array([0x00, 0x88, 0xFF, 0x80, 0x7F], np.uint8), (int(odd.sum()), 1)
                )
                for field in encoding.scale_fields.values():
                    blocks[
                        rng.random(len(blocks)) < 0.1, field.offset : field.offset + field.nbytes
                    ] = 0
            raw[: size // 6] = 0
            tensors.append((name, numbers[0], axes, raw.tobytes()))
    path = tmp_path_factory.mktemp("troubled") / "troubled.gguf"
    path.write_bytes(write_gguf({"general.architecture": "llama"}, tensors))
    return path


def rendered(path: Path, **options: object) -> str:
    return json.dumps(qassay.check(path, **options).to_dict())  # type: ignore[arg-type]


@pytest.mark.parametrize("stats", ["default", "full"])
def test_jobs_chunks_and_kernels_do_not_show(
    troubled: Path, stats: str, kernel_set: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QASSAY_KERNELS", "reference")
    truth = rendered(troubled, jobs=1, stats=stats)
    codes = {finding["code"] for finding in json.loads(truth)["findings"]}
    assert {"Q201", "Q202", "Q203", "Q205", "Q301", "Q302", "Q303", "Q401", "Q402"} <= codes
    monkeypatch.setenv("QASSAY_KERNELS", kernel_set)
    for jobs in (1, 2, 7):
        for chunk_bytes in (300, 5000, 1 << 24):
            same = rendered(troubled, jobs=jobs, chunk_bytes=chunk_bytes, stats=stats)
            assert same == truth, (jobs, chunk_bytes)


def test_a_sound_file_too(kernel_set: str) -> None:
    path = FIXTURES / "minilm-l0-out-alltypes.gguf"
    reports = {
        rendered(path, jobs=jobs, chunk_bytes=size) for jobs in (1, 2, 7) for size in (500, 9999)
    }
    assert len(reports) == 1


def test_a_row_longer_than_a_chunk_is_still_seen_to_be_dead(tmp_path: Path) -> None:
    values = np.ones((3, 4096), np.float32)
    values[1] = 0
    data = write_gguf({}, [("a.weight", 0, [4096, 3], values.tobytes())])
    (tmp_path / "a.gguf").write_bytes(data)
    for size in (64, 1000, 4096 * 4, 1 << 20):
        report = qassay.check(tmp_path / "a.gguf", chunk_bytes=size)
        [finding] = [f for f in report.findings if f.code == "Q402"]
        assert (finding.count, finding.locations[0].row) == (1, 1)

"""Sound files made by other people's tools give no error and no warning, and few notes."""

from __future__ import annotations

from pathlib import Path

import pytest

import qassay
from qassay.core.finding import Severity

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
SOUND = {
    # file or folder: how many notes it may give
    "slices/real-slices.gguf": 0,
    "github/llama-2-tiny-random.gguf": 1,
    "github/weight-inspect-empty.gguf": 0,
    "checkpoints/source-tiny-llama-f16": 1,
    "checkpoints/source-tiny-llama-f16/model.safetensors": 1,
}


def graver_than_info(report: qassay.Report) -> list[str]:
    return [f"{f.code} {f.tensor}" for f in report.findings if f.severity > Severity.INFO]


@pytest.mark.parametrize("name", SOUND)
def test_sound_files(real_files: Path, name: str, kernel_set: str) -> None:
    report = qassay.check(real_files / name)
    assert report.verdict == "clean", graver_than_info(report)
    assert len(report.findings) <= SOUND[name]


@pytest.mark.parametrize("kernels", ["reference", "fast"])
def test_every_type_of_libgguf(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QASSAY_KERNELS", kernels)
    report = qassay.check(FIXTURES / "minilm-l0-out-alltypes.gguf", stats="full")
    assert graver_than_info(report) == []
    assert {f.code for f in report.findings} == {"Q901"}
    assert report.verdict == "incomplete"  # IQ1 to IQ3, TQ and Q1_0 are not read yet
    read = {tensor["encoding"] for tensor in report.to_dict()["tensors"] if tensor["checked"]}
    assert len(read) == 16


UNREAD = ("bnb-", "hqq-")


@pytest.mark.parametrize("stats", ["default", "full"])
def test_sound_checkpoints_are_clean(real_files: Path, stats: str) -> None:
    for folder in sorted((real_files / "checkpoints").iterdir()):
        report = qassay.check(folder, stats=stats)
        assert graver_than_info(report) == [], folder.name
        # Families that are not read are never called clean.
        unread = folder.name.startswith(UNREAD)
        assert report.verdict == ("incomplete" if unread else "clean"), folder.name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("github/lfs-pointer.gguf", "Git LFS pointer"),
        ("github/ollama-6-bytes.gguf", "header"),
    ],
)
def test_what_is_no_model_is_said(real_files: Path, name: str, words: str) -> None:
    report = qassay.check(real_files / name)
    assert report.verdict in ("incomplete", "findings")
    document = report.to_dict()
    assert words in document["coverage"]["skipped"][0]["reason"]

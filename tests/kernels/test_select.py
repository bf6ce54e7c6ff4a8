"""Which kernels run: small inputs never pay for Numba, and a variable pins a set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qassay.core.errors import UsageError
from qassay.kernels import select

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def test_size_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(select.VARIABLE, raising=False)
    assert select.choose(select.SMALL - 1).name == "reference"
    assert select.choose(select.SMALL).name == "fast"


@pytest.mark.parametrize("name", ["reference", "fast"])
def test_the_variable_pins_a_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(select.VARIABLE, name)
    assert {select.choose(size).name for size in (0, 1 << 40)} == {name}


def test_an_unknown_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(select.VARIABLE, "turbo")
    with pytest.raises(UsageError, match="turbo"):
        select.choose(0)


def test_checking_and_decoding_a_small_file_never_imports_numba() -> None:
    code = (
        "import sys, qassay\n"
        f"path = {str(FIXTURES / 'minilm-l0-out-alltypes.gguf')!r}\n"
        "report = qassay.check(path)\n"
        "qassay.open(path).tensors['w.Q4_K'].dequantize()\n"
        "assert len(report.to_dict()['tensors']) >= 15\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("value", ["1", " 1 "])
def test_interpreted_kernels_are_never_chosen(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.delenv(select.VARIABLE, raising=False)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
    monkeypatch.setattr(select, "notes", {})
    assert select.choose(0).name == "reference"
    assert not select.notes
    assert select.choose(1 << 40).name == "reference"
    assert len(select.notes) == 1
    monkeypatch.setenv(select.VARIABLE, "fast")
    with pytest.raises(UsageError, match="NUMBA_DISABLE_JIT"):
        select.choose(0)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    assert select.choose(0).name == "fast"


CACHED = """
import numpy as np
from qassay.encodings.registry import by_id
from qassay.kernels import fast_decode
raw = np.arange(340, dtype=np.uint8) % 60
print(fast_decode.dequantize(raw, by_id("ggml.q8_0")).sum())
"""


def test_damaged_cache_files_count_as_missing(tmp_path: Path) -> None:
    def run() -> str:
        env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", CACHED], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run()
    for suffix in ("nbi", "nbc"):
        files = list(tmp_path.rglob(f"*.{suffix}"))
        assert files
        for length in (0, 20, 200):
            whole = {file: file.read_bytes() for file in files}
            for file in files:
                os.truncate(file, length)
            assert run() == first
            assert {file: len(file.read_bytes()) for file in files} == {
                file: len(data) for file, data in whole.items()
            }, "written anew"

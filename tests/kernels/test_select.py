"""Which kernels run: small inputs never pay for Numba, and a variable pins a set."""

from __future__ import annotations

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

"""The engine `ggml` writes what the C reference wrote, byte for byte."""

from __future__ import annotations

from pathlib import Path

import awkward
import numpy as np
import pytest
from ggml_cases import NAMES, WEIGHTED

from qassay.core.errors import UsageError
from qassay.encodings import by_id
from qassay.runtimes.base import describe
from qassay.runtimes.ggml import GgmlEngine
from qassay.runtimes.registry import engine

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
CASES = [(name, "noimatrix") for name in NAMES] + [(name, "imatrix") for name in WEIGHTED]


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "ggml_quantize.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize("kernels", ["reference", "fast"])
@pytest.mark.parametrize(("name", "given"), CASES)
def test_all_rows_of_the_oracle(
    golden: dict[str, np.ndarray], name: str, given: str, kernels: str
) -> None:
    importance = golden["imatrix"] if given == "imatrix" else None
    ours = GgmlEngine.quantize(golden["x"], NAMES[name], importance, kernels=kernels)
    wanted = golden[f"{name}__{given}"]
    assert ours.shape == wanted.shape
    assert len(wanted) == 118
    wrong = golden["label"][(ours != wanted).any(axis=1)]
    assert not wrong.size, wrong


@pytest.mark.parametrize("kernels", ["reference", "fast"])
@pytest.mark.parametrize("column", ["c_ref", "libgguf"])
def test_edge_cases_of_q8_0(column: str, kernels: str) -> None:
    with np.load(FIXTURES / "q8_0_edge_cases.npz") as stored:
        ours = GgmlEngine.quantize(stored["x"], "Q8_0", kernels=kernels)
        wrong = stored["labels"][(ours != stored[column]).any(axis=1)]
    assert not wrong.size, wrong


def test_importance_changes_no_byte_of_a_type_that_ignores_it() -> None:
    x = awkward.rows("normal", 1, 4)
    given = awkward.importance("usual", 1)
    for name in set(NAMES) - set(WEIGHTED):
        plain = GgmlEngine.quantize(x, NAMES[name])
        assert np.array_equal(GgmlEngine.quantize(x, NAMES[name], given), plain)


def test_the_engine_is_found_and_described() -> None:
    assert engine("ggml") is GgmlEngine
    assert describe(GgmlEngine)["encodings"] == sorted(NAMES.values())


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="does not write"):
        GgmlEngine.quantize(np.zeros(32), "f64")
    with pytest.raises(UsageError, match="whole number"):
        GgmlEngine.quantize(np.zeros(288), "Q4_K")
    with pytest.raises(UsageError, match="another length"):
        GgmlEngine.quantize(np.zeros(512), "Q4_K", np.ones(256))


@pytest.mark.parametrize("kernels", ["reference", "fast"])
@pytest.mark.parametrize("name", NAMES)
def test_no_rows_and_empty_rows(name: str, kernels: str) -> None:
    encoding = by_id(NAMES[name])
    width = encoding.block * 2
    given = np.ones(width, np.float32) if name in WEIGHTED else None
    none = GgmlEngine.quantize(np.zeros((0, width)), encoding, given, kernels=kernels)
    assert none.shape == (0, 2 * encoding.block_bytes)
    assert GgmlEngine.quantize(np.zeros((3, 0)), encoding, kernels=kernels).shape == (3, 0)

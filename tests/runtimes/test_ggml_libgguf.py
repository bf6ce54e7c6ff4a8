"""The engine `ggml` against libgguf, which carries ggml's C, on rows made here."""

from __future__ import annotations

import platform

import awkward
import numpy as np
import pytest
from ggml_cases import NAMES, WEIGHTED

from qassay.kernels.quantize_reference_legacy import LOG2_LEAST, log2_steps
from qassay.runtimes.ggml import GgmlEngine

gguf = pytest.importorskip("gguf")
libgguf = pytest.importorskip("libgguf")

X86 = platform.machine() in {"x86_64", "AMD64"}
CASES = [(name, None) for name in NAMES]
CASES += [(name, kind) for name in WEIGHTED for kind in awkward.IMPORTANCE]


def theirs(name: str, x: awkward.Floats, importance: awkward.Floats | None) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[name]
    return libgguf.quantize_rows(x, kind, imatrix=importance).view(np.uint8).reshape(len(x), -1)


@pytest.mark.parametrize(("name", "given"), CASES)
def test_rows_without_nan(name: str, given: str | None) -> None:
    """All kinds of finite and infinite rows, two super-blocks wide: 2,000 rows a case at least."""
    importance = None if given is None else awkward.importance(given, 3, 512)
    x = np.concatenate([awkward.rows(kind, 17, 260, 512) for kind in awkward.FINITE_OR_INF])
    assert len(x) >= 2000
    ours = GgmlEngine.quantize(x, NAMES[name], importance)
    wrong = np.flatnonzero((ours != theirs(name, x, importance)).any(axis=1))
    assert not wrong.size, wrong


@pytest.mark.skipif(not X86, reason="which payload two NaN leave behind is the processor's choice")
@pytest.mark.parametrize("given", [None, "usual", "third_zero"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_with_one_nan_pattern(name: str, given: str | None) -> None:
    """Quiet and signalling NaN of several payloads and signs; one pattern a row."""
    if given and name not in WEIGHTED:
        pytest.skip("takes no importance")
    importance = None if given is None else awkward.importance(given, 3, 512)
    x = awkward.rows("normal", 23, 700, 512)
    rng = np.random.default_rng(29)
    patterns = rng.choice(np.array(awkward.PAYLOADS, np.uint32), (len(x), 1)).view(np.float32)
    x = np.where(rng.random(x.shape) < rng.choice([0.003, 0.03, 0.5], (len(x), 1)), patterns, x)
    ours = GgmlEngine.quantize(x, NAMES[name], importance)
    wrong = np.flatnonzero((ours != theirs(name, x, importance)).any(axis=1))
    assert not wrong.size, wrong


@pytest.mark.skipif(not X86, reason="which payload two NaN leave behind is the processor's choice")
@pytest.mark.parametrize("given", [None, "usual"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_with_several_nan_patterns(name: str, given: str | None) -> None:
    """NaN of two patterns and infinities meet in one row.

    Q4_0 and Q5_0 with importance may differ in one bit: the sign of a scale that is NaN. It is the
    sign of whichever NaN an addition met as its first operand; C leaves the order of operands of
    a sum to the compiler, which vectorised that loop.
    """
    if given and name not in WEIGHTED:
        pytest.skip("takes no importance")
    importance = None if given is None else awkward.importance(given, 3, 512)
    x = awkward.rows("not_finite", 31, 1000, 512)
    ours, wanted = GgmlEngine.quantize(x, NAMES[name], importance), theirs(name, x, importance)
    if given and name in {"Q4_0", "Q5_0"}:
        length = {"Q4_0": 18, "Q5_0": 22}[name]
        ours, wanted = ours.reshape(-1, length).copy(), wanted.reshape(-1, length).copy()
        for blocks in (ours, wanted):
            nan = blocks[:, :2].copy().view("<u2")[:, 0] & 0x7FFF == 0x7E00
            blocks[nan, 1] &= 0x7F
    wrong = np.flatnonzero((ours != wanted).any(axis=1))
    assert not wrong.size, wrong


def test_exponents_of_mxfp4_below_powers_of_two() -> None:
    """Where log2f rounds up to the next whole number, and one step before."""
    bits = [
        mantissa << shift
        for shift in range(23)
        for mantissa in range(1 << (23 - shift), max(1, (1 << (23 - shift)) - 40), -1)
    ]
    for exponent in range(1, 255):
        step = (exponent << 23) + int(log2_steps()[exponent + LOG2_LEAST - 127])
        bits += [step + near for near in range(-3, 4) if step + near < exponent + 1 << 23]
    most = np.array(bits, np.uint32).view(np.float32)
    x = most[:, None] * np.linspace(-1, 1, 32, dtype=np.float32)
    x[:, -1] = most
    wanted = theirs("MXFP4", x, None)
    for kernels in ("reference", "fast"):
        ours = GgmlEngine.quantize(x, "MXFP4", kernels=kernels)
        assert np.array_equal(ours, wanted), kernels

"""Engines against other programs' bytes, and against anything a file may hold."""

from __future__ import annotations

import platform
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest

from qassay.core.errors import UsageError
from qassay.encodings import by_id
from qassay.runtimes.arithmetic import halves, legacy_block
from qassay.runtimes.base import describe
from qassay.runtimes.kestrel import Kestrel
from qassay.runtimes.registry import all_engines, engine

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

OURS = ("candle", "ggml-avx2", "gguf-py", "kestrel", "kestrel-legacy")
ROUTES = [(name, to) for name in OURS for to in all_engines()[name].routes]

EDGES = np.load(FIXTURES / "q8_0_edge_cases.npz")
GGML = np.load(FIXTURES / "ggml_quantize.npz")
RUST = np.load(FIXTURES / "rust_candle_formulas.npz")


def awkward(n: int, width: int = 256) -> np.ndarray:
    """Return rows of any bit pattern, of every magnitude, on ties, constant, zero of both signs."""
    rng = np.random.default_rng(11)
    bits = rng.integers(0, 1 << 32, (n, width), dtype=np.uint64).astype(np.uint32)
    sizes = 10.0 ** rng.integers(-44, 38, (n, 1))
    normal = (rng.standard_normal((n, width)) * sizes).astype(np.float32)
    ties = (rng.integers(-254, 255, (n, width)) / 2).astype(np.float32)
    zeros = np.where(rng.random((n, width)) < 0.5, np.float32(-0.0), np.float32(0))
    constant = np.repeat(normal[:, :1], width, axis=1)
    holes = normal.copy()
    holes[rng.random((n, width)) < 0.01] = np.nan
    holes[rng.random((n, width)) < 0.01] = -np.inf
    return np.concatenate([bits.view(np.float32), normal, ties, zeros, constant, holes])


@pytest.mark.parametrize("name", OURS)
def test_an_engine_describes_itself(name: str) -> None:
    about = describe(engine(name))
    assert about["id"] == name
    assert about["title"].endswith(".")
    assert about["encodings"]
    assert all(about["sources"])


@pytest.mark.parametrize(("column", "name"), [("c_avx2", "ggml-avx2"), ("ggufpy", "gguf-py")])
def test_every_edge_case_of_q8_0_is_byte_equal(column: str, name: str) -> None:
    written = engine(name).quantize(EDGES["x"], "ggml.q8_0")
    differs = (written != EDGES[column]).any(axis=1)
    assert not differs.any(), EDGES["labels"][differs]


def test_ggml_avx2_equals_the_c_code_on_every_row() -> None:
    written = engine("ggml-avx2").quantize(GGML["x"], "ggml.q8_0")
    differs = (written != GGML["Q8_0__avx2"]).any(axis=1)
    assert not differs.any(), GGML["label"][differs]


def test_candle_on_the_q8_0_edge_cases() -> None:
    """The candle column of facts/formats.md 3.3, row by row."""
    written = dict(zip(EDGES["labels"], engine("candle").quantize(EDGES["x"], "q8_0"), strict=True))
    reference = dict(zip(EDGES["labels"], EDGES["c_ref"], strict=True))
    d = {label: int(row[:2].view("<u2")[0]) for label, row in written.items()}
    q = {label: row[2:].view(np.int8).astype(int) for label, row in written.items()}
    for label, row in written.items():  # where no element is NaN, the C reference's bytes
        if "nan" not in label:
            assert np.array_equal(row, reference[label]), label
    base = q["base"]
    for at in (0, 5, 20, 31):
        label = f"nan@{at}"
        expected = base.copy()
        expected[at] = 0
        assert d[label] == 0x1C08
        assert np.array_equal(q[label], expected)
    assert of_half(d["0.9@2,nan@20"]) == pytest.approx(7.09e-3, rel=1e-3)
    assert (q["0.9@2,nan@20"][2], q["0.9@2,nan@20"][20]) == (127, 0)
    assert of_half(d["100@2,nan@20"]) == pytest.approx(0.787, rel=1e-3)
    assert q["100@2,nan@20"][2] == 127
    assert d["inf@3,nan@7"] == 0x7C00
    assert not q["inf@3,nan@7"].any()
    assert d["allnan"] == 0
    assert not q["allnan"].any()
    assert -15 in q["ties,127"]  # away from zero


def of_half(bits: int) -> float:
    return float(np.uint16(bits).view(np.float16))


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_candle_equals_its_formulas_run_by_rustc(kind: str) -> None:
    x = RUST["x"].view(np.float32)
    numbers = [halves(RUST[f"{kind}__d"].view(np.float32)[:, None])]
    if kind.endswith("_1"):
        numbers.append(halves(RUST[f"{kind}__m"].view(np.float32)[:, None]))
    expected = legacy_block(numbers, RUST[f"{kind}__q"], int(kind[1]))
    written = engine("candle").quantize(x, kind)
    if kind.endswith("_1"):  # Rust leaves the sign of a minimum among mixed zeros open
        open_sign = (x == 0).any(axis=1) & ~(x < 0).any(axis=1)
        for blocks in (expected, written):
            blocks[open_sign, 3] &= 0x7F
    differs = np.flatnonzero((written != expected).any(axis=1))
    assert not differs.size, differs


GGUF_TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]


@pytest.mark.parametrize("kind", GGUF_TYPES)
@pytest.mark.parametrize("rows", ["fixture", "awkward"])
def test_gguf_py_equals_the_installed_gguf(kind: str, rows: str) -> None:
    """Byte for byte, NaN payloads and all.

    Blocks that hold NaN, infinity or magnitudes whose reciprocals overflow go through casts that
    NumPy leaves open; gguf-py's bytes there are those of x86-64, and elsewhere they are left out.
    """
    x = GGML["x"] if rows == "fixture" else awkward(400)
    if platform.machine() not in {"x86_64", "AMD64"}:
        sizes = np.abs(x)
        settled = np.isfinite(x) & ((sizes == 0) | (sizes > 1e-30)) & (sizes < 1e30)
        x = x[settled.all(axis=1)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs = gguf.quants.quantize(x, gguf.GGMLQuantizationType[kind]).view(np.uint8)
    ours = engine("gguf-py").quantize(x, kind)
    differs = np.flatnonzero((ours != theirs).any(axis=1))
    assert not differs.size, differs


def test_gguf_py_spreads_a_nan_over_its_block_and_no_further() -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 40] = np.nan
    for to in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
        values = by_id(to).dequantize(engine("gguf-py").quantize(x, to).reshape(-1))
        assert np.isnan(values[32:]).all(), to
        assert np.allclose(values[:32], 1, rtol=1e-3), to


class TestKestrel:
    BLOCK = np.array([3.0, -3.0, -2.3, 2.3, -0.4, 0.4, *np.zeros(26)], np.float32)

    def codes(self, name: str, block: np.ndarray) -> np.ndarray:
        return engine(name).quantize(block, "q8_0")[0, 2:].view(np.int8).astype(int)

    def test_codes_are_cut_off_toward_zero(self) -> None:
        """3 / 127 a step: -127 becomes (int)(-126.5), -97.4 becomes (int)(-96.9)."""
        assert list(self.codes("kestrel", self.BLOCK)[:6]) == [127, -126, -96, 97, -16, 17]

    def test_nan_and_infinity_convert_as_on_aarch64(self) -> None:
        block = self.BLOCK.copy()
        block[7] = np.nan
        assert self.codes("kestrel", block)[7] == 0
        assert self.codes("kestrel", block)[0] == 127
        block[8] = np.inf
        written = engine("kestrel").quantize(block, "q8_0")[0]
        assert written[:2].view("<u2")[0] == 0x7C00
        assert not written[2:].any()

    def test_the_older_conversion_cuts_the_scale_off_and_flushes(self) -> None:
        sine = (3 * np.sin(0.7 * np.arange(32))).astype(np.float32)
        scale = {
            name: float(engine(name).quantize(sine, "q8_0")[0, :2].view("<f2")[0])
            for name in ("kestrel", "kestrel-legacy")
        }
        assert scale["kestrel-legacy"] == 0.0234375
        assert scale["kestrel"] == pytest.approx(0.0234528, abs=5e-8)
        edge = np.float32(127 * 2.0**-14)
        for amax, lost in ((edge, False), (np.nextafter(edge, np.float32(0)), True)):
            block = np.full((1, 32), amax, np.float32)
            values = by_id("q8_0").dequantize(
                engine("kestrel-legacy").quantize(block, "q8_0").reshape(-1)
            )
            assert (values == 0).all() == lost
            assert engine("kestrel").quantize(block, "q8_0")[0, :2].any()

    def test_scale_has_a_floor(self) -> None:
        written = engine("kestrel").quantize(np.full(32, 1e-12, np.float32), "q8_0")[0]
        assert not written.any()

    @pytest.mark.parametrize(("size", "dropped"), [(64, 0), (65, 1), (95, 31), (31, 31), (0, 0)])
    def test_a_tail_that_fills_no_block_is_dropped(self, size: int, dropped: int) -> None:
        done = Kestrel.quantize_tensor(np.ones(size, np.float32), "q8_0")
        assert done.dropped == dropped
        assert done.raw.size == (size - dropped) // 32 * 34

    def test_a_tensor_is_cut_without_regard_to_rows(self) -> None:
        done = Kestrel.quantize_tensor(np.ones((3, 33), np.float32), "q4_0")
        assert (done.raw.shape, done.dropped) == ((3, 18), 3)

    def test_rows_that_are_no_whole_blocks_are_refused_elsewhere(self) -> None:
        with pytest.raises(UsageError, match="no whole number"):
            engine("kestrel").quantize(np.ones((3, 33), np.float32), "q8_0")


def test_an_engine_refuses_what_it_does_not_write() -> None:
    with pytest.raises(UsageError, match="candle does not write"):
        engine("candle").quantize(np.ones((1, 32), np.float32), "mxfp4")


@pytest.mark.parametrize(("name", "to"), ROUTES)
def test_chunks_do_not_show(name: str, to: str) -> None:
    rows = np.random.default_rng(5).standard_normal((700, 1024)).astype(np.float32)
    whole = engine(name).quantize(rows, to)
    parts = [engine(name).quantize(part, to) for part in np.array_split(rows, 7)]
    assert np.array_equal(whole, np.concatenate(parts))

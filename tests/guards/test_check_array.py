"""`qassay.check_array`: what it refuses, where it points, and which arrays it takes."""

from __future__ import annotations

import pickle
import subprocess
import sys
import types

import numpy as np
import pytest

import qassay
from qassay.core.finding import Severity
from qassay.runtimes.arithmetic_published import damaged_blocks

PUBLISHED = {
    "plain": None,
    "NaN at [1]": ("Q504", "block 0: element 1 is NaN"),
    "inf at [1]": ("Q504", "block 0: element 1 is inf"),
    "block x 1e-5": (
        "Q503",
        "block 0: amax 5e-6, scale 3.937008e-8 is stored as 5.9604645e-8 in f16",
    ),
    "block x 4e-6": (
        "Q502",
        "block 0: amax 2e-6, scale 1.5748032e-8 is stored as 0e0 in f16",
    ),
    "block x 2e7": ("Q501", "block 0: amax 1e7 overflows the f16 scale"),
}


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float32)


@pytest.mark.parametrize("case", PUBLISHED)
def test_the_published_check_literally(case: str) -> None:
    block = damaged_blocks()[case]
    expected = PUBLISHED[case]
    findings = qassay.check_array(block, to="Q8_0", profile="candle", on_bad="return")
    if expected is None:
        assert findings == []
        assert qassay.check_array(block, profile="candle") == []
        return
    [finding] = findings
    assert (finding.code, finding.message) == expected
    assert finding.count == 1
    assert finding.location.block == 0
    with pytest.raises(qassay.DamagedError) as caught:
        qassay.check_array(block, profile="candle")
    assert str(caught.value) == expected[1]
    assert repr(caught.value.findings) == repr((finding,))


def test_the_published_check_names_block_and_element_anywhere() -> None:
    tensor = weights(300, 1024)
    tensor[299, 70] = np.nan
    tensor[299, 100] = -np.inf
    [finding] = qassay.check_array(tensor, profile="candle", on_bad="return")
    assert finding.message == f"block {299 * 32 + 2}: element 6 is NaN"
    assert finding.data["messages"][1] == f"block {299 * 32 + 3}: element 4 is -inf"
    assert (finding.location.row, finding.location.column) == (299, 70)


def test_the_published_limit_is_65504_and_not_65520() -> None:
    block = np.zeros(32, np.float32)
    block[0] = 127 * np.float32(65510)
    assert qassay.check_array(block, on_bad="return") == []
    [finding] = qassay.check_array(block, profile="candle", on_bad="return")
    assert finding.code == "Q501"


@pytest.mark.parametrize(
    ("to", "amax", "code"),
    [
        ("Q8_0", 8_321_040.0, "Q501"),
        ("Q8_0", np.nextafter(np.float32(8_321_040), np.float32(0)), None),
        ("Q4_0", 524_160.0, "Q501"),
        ("Q4_0", np.nextafter(np.float32(524_160), np.float32(0)), None),
        ("Q8_0", 3.7e-6, "Q502"),
        ("Q8_0", 3.9e-6, "Q503"),
        ("Q8_0", 1e-3, None),
        ("Q4_0", 2.3e-7, "Q502"),
    ],
)
def test_limits(to: str, amax: float, code: str | None) -> None:
    block = np.zeros((1, 32), np.float32)
    block[0, 3] = amax
    found = qassay.check_array(block, to=to, on_bad="return")
    assert [finding.code for finding in found] == ([] if code is None else [code])


@pytest.mark.parametrize("to", ["Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q6_K", "Q2_K", "IQ4_NL", "MXFP4"])
def test_healthy_weights_pass(to: str) -> None:
    assert qassay.check_array(weights(8, 512), to=to) == []


@pytest.mark.parametrize(
    ("sd", "lost"),
    [
        (1e-5, {"Q6_K": "Q502", "Q4_0": None}),
        (1e-6, {"Q8_0": "Q502", "Q6_K": "Q502"}),
    ],
)
def test_small_tensors(sd: float, lost: dict[str, str | None]) -> None:
    tensor = (np.random.default_rng(1).standard_normal((4, 512)) * sd).astype(np.float32)
    for to, code in lost.items():
        found = qassay.check_array(tensor, to=to, on_bad="return")
        errors = {one.code for one in found if one.severity is Severity.ERROR}
        assert (code in errors) if code else not errors, to


def test_severity_of_lost_blocks() -> None:
    tensor = weights(2, 64)
    tensor[0, :32] = 0
    tensor[0, 5] = 1e-7
    [finding] = qassay.check_array(tensor)
    assert (finding.code, finding.severity) == ("Q502", Severity.WARNING)
    with pytest.raises(qassay.DamagedError):
        qassay.check_array(tensor, fail_on="warning")
    tensor[1] *= 1e6
    [finding] = [one for one in qassay.check_array(tensor) if one.code == "Q502"]
    assert finding.severity is Severity.INFO
    tensor = weights(2, 64)
    tensor[0] *= np.float32(1e-5)
    with pytest.raises(qassay.DamagedError):  # a whole row
        qassay.check_array(tensor)


def test_an_outlier_that_flattens_its_super_block_is_named() -> None:
    tensor = weights(4, 512)
    tensor[2, 300] = 6e6
    [finding] = qassay.check_array(tensor, to="Q6_K")
    assert finding.severity is Severity.WARNING
    assert finding.location.block == 5
    assert "6e+06" in finding.message
    with pytest.raises(qassay.DamagedError):
        qassay.check_array(tensor, to="Q6_K", fail_on="warning")


@pytest.mark.parametrize("to", ["Q8_0", "Q4_K", "Q6_K", "f16"])
def test_nan_and_infinity_in_the_source(to: str) -> None:
    tensor = weights(4, 256)
    tensor[3, 77] = np.nan
    tensor[3, 78] = -np.inf
    [finding] = qassay.check_array(tensor, to=to, on_bad="return")
    assert (finding.code, finding.count) == ("Q401" if to == "f16" else "Q504", 2)
    assert (finding.location.row, finding.location.column) == (3, 77)
    assert str(finding.location.value) == "nan"


def test_places_are_counted_and_sixteen_are_kept() -> None:
    tensor = weights(64, 4096)
    tensor[1:51, ::32] = np.nan
    [finding] = qassay.check_array(tensor, on_bad="return")
    assert finding.count == 50 * 128
    assert len(finding.locations) == 16
    assert finding.locations[0].block == 128


class TestArrays:
    @pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
    def test_numpy(self, dtype: str) -> None:
        tensor = weights(2, 64).astype(dtype)
        assert qassay.check_array(tensor) == []
        tensor[1, 33] = np.nan
        [finding] = qassay.check_array(tensor, on_bad="return")
        assert finding.location.block == 3

    def test_bfloat16(self) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        tensor = weights(2, 64).astype(ml_dtypes.bfloat16)
        assert qassay.check_array(tensor) == []
        tensor[0, 2] = np.inf
        [finding] = qassay.check_array(tensor, on_bad="return")
        assert finding.message.endswith("at row 0, block 0, element 2")

    def test_lists_and_strides(self) -> None:
        assert qassay.check_array([0.5] * 32) == []
        assert qassay.check_array(weights(64, 64).T[::2]) == []
        assert qassay.check_array(weights(0, 32)) == []

    def test_a_double_that_float32_cannot_hold(self) -> None:
        tensor = weights(2, 32).astype(np.float64)
        tensor[0, 4] = 1e39
        [finding] = qassay.check_array(tensor, on_bad="return")
        assert finding.code == "Q501"
        assert "1e+39" in finding.message

    @pytest.mark.parametrize("given", [np.arange(32), np.zeros(32, bool), ["a"] * 32, None])
    def test_no_floats(self, given: object) -> None:
        with pytest.raises(qassay.UsageError, match="only floats"):
            qassay.check_array(given)

    @pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
    def test_torch(self, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = sys.modules.get("torch") or Torch()
        monkeypatch.setitem(sys.modules, "torch", torch)
        tensor = torch.tensor(weights(2, 64).tolist(), dtype=getattr(torch, dtype))
        assert qassay.check_array(tensor) == []
        tensor[1, 35] = float("nan")
        [finding] = qassay.check_array(tensor, on_bad="return")
        assert (finding.location.block, finding.location.column) == (3, 35)
        with pytest.raises(qassay.UsageError, match="only floats"):
            qassay.check_array(torch.tensor([1] * 32, dtype=torch.int16))


class DType(str):
    """A torch dtype, as far as `str` of it goes."""

    __slots__ = ()


class Torch(types.ModuleType):
    """As much of torch as a tensor needs, where torch is not installed."""

    def __init__(self) -> None:
        super().__init__("torch")
        for name in ("float16", "float32", "float64", "bfloat16", "int16"):
            setattr(self, name, DType(f"torch.{name}"))

        class Tensor:
            def __init__(self, array: np.ndarray, dtype: object) -> None:
                self.array, self.dtype = array, dtype
                self.shape = array.shape

            def __setitem__(self, key: object, value: float) -> None:
                bits = str(self.dtype) == "torch.bfloat16"
                self.array[key] = 0x7FC0 if bits else value

            def detach(self) -> Tensor:
                return self

            cpu = contiguous = detach

            def view(self, dtype: object) -> Tensor:
                assert str(dtype) == "torch.int16"
                return Tensor(self.array.view(np.int16), dtype)

            def numpy(self) -> np.ndarray:
                assert str(self.dtype) != "torch.bfloat16"
                return self.array

        self.Tensor = Tensor

    def tensor(self, values: object, dtype: object) -> object:
        name = str(dtype).partition(".")[2]
        if name == "bfloat16":
            array = (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            array = np.array(values, name)
        return self.Tensor(array, dtype)


def test_neither_torch_nor_gguf_nor_numba_is_imported() -> None:
    script = (
        "import sys, numpy as np, qassay\n"
        "qassay.check_array(np.ones((4, 64), 'f4'))\n"
        "assert not {'torch', 'gguf', 'numba', 'ml_dtypes'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "Q9_9"}, "no encoding called Q9_9"),
        ({"to": "i8"}, "no encoding called i8"),
        ({"profile": "kandle"}, "no such profile"),
        ({"profile": "candle", "to": "Q4_0"}, "one of Q8_0"),
        ({"profile": "candle", "to": "f16"}, "one of Q8_0"),
        ({"on_bad": "ignore"}, "on_bad is out of range"),
        ({"fail_on": "info"}, "fail_on is out of range"),
        ({"to": "Q4_K"}, "no whole number of ggml.q4_k blocks"),
    ],
)
def test_wrong_arguments(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(qassay.UsageError, match=message):
        qassay.check_array(weights(2, 64), **arguments)


def test_the_error_names_the_tensor_and_pickles() -> None:
    with pytest.raises(qassay.DamagedError) as caught:
        qassay.check_array(np.full(32, np.nan, "f4"), name="blk.0\x1b[m")
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, qassay.DamagedError)
    assert repr(error.findings) == repr(caught.value.findings)
    assert "\x1b" not in str(error)
    assert "Fix:" in str(error)


class TestPlain:
    def test_f16(self) -> None:
        values = np.array([65519, 65520, -7e4, 1e-9, 3e-6], np.float32)
        found = {one.code: one for one in qassay.check_array(values, to="f16", on_bad="return")}
        assert {code: each.count for code, each in found.items()} == {"Q501": 2}
        assert found["Q501"].location.column == 1
        assert found["Q501"].severity is Severity.ERROR

    def test_bf16_and_f8(self) -> None:
        values = np.array([3.4e38, 1.0], np.float32)
        [one] = qassay.check_array(values, to="bf16", on_bad="return")
        assert one.code == "Q501"
        [two] = qassay.check_array(np.float32([460, 470]), to="f8_e4m3", on_bad="return")
        assert two.location.column == 1
        assert qassay.check_array(np.float32([1e-40, 3e38]), to="f32") == []

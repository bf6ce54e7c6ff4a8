"""What sound quantizers leave is no finding, whatever the weights: the false alarms there were."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from packings import GPTQ_CONFIG, NAME, Matrix, save, save_gguf
from test_cost_faults import floats, rounded, weights

from qassay.comparison.cost.remainder import columns_of
from qassay.encodings import by_id
from qassay.runtimes.registry import all_engines

Run = Callable[..., tuple[int, dict[str, Any]]]
E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
DEFECTIVE = {("kestrel", "ggml.q8_0"), ("kestrel-legacy", "ggml.q8_0")}
ROUTES = [
    (engine, kind)
    for engine, known in all_engines().items()
    for kind in known.routes
    if (engine, kind) not in DEFECTIVE and not by_id(kind).id.endswith("f16")
]
WEIGHED = [kind for kind, route in all_engines()["ggml"].routes.items() if route.takes_importance]


def hard(rows: int, columns: int = 256) -> dict[str, np.ndarray]:
    """Return matrices of the kinds that made false alarms."""
    rng = np.random.default_rng(rows)
    base = lambda: rng.normal(size=(rows, columns)) * 0.02  # noqa: E731
    column, row, huge, dead, live = (base() for _ in range(5))
    column[:, 37] *= 50
    row[rows // 2] *= 50
    huge[3, 77] = 5
    dead[::4] = 0
    live[1:] = 0
    found = {
        "Laplace": rng.laplace(size=(rows, columns)) * 0.02,
        "Student": rng.standard_t(3, size=(rows, columns)) * 0.02,
        "column": column,
        "row": row,
        "huge": huge,
        "dead": dead,
        "live": live,
        "constant rows": np.where(np.arange(rows)[:, None] % 2, -0.013, base()),
        "constant": np.full((rows, columns), 0.017),
        "signs": np.sign(base()) * 0.03,
        "ternary": rng.integers(-1, 2, (rows, columns)) * 0.03,
        "positive": np.abs(base()),
        "one": 1 + base(),
        "sparse": base() * (rng.random((rows, columns)) < 0.1),
        "zeros": np.zeros((rows, columns)),
    }
    for power in (3, 6, 9):
        small = base()
        small[::3] *= 10.0**-power
        found[f"rows of 1e-{power}"] = small
    return {name: np.ascontiguousarray(w, np.float32) for name, w in found.items()}


def named(matrices: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {NAME.replace(".0.", f".{at}."): w for at, w in enumerate(matrices.values())}


def assert_sound(report: dict[str, Any], matrices: dict[str, np.ndarray]) -> None:
    assert [(x["tensor"], x["message"]) for x in report["findings"]] == []
    layers = report["result"]["layers"]
    assert len(layers) == len(matrices)
    assert {layer["relation"] for layer in layers} <= {"quantized", "equal"}


@pytest.mark.parametrize("rows", [8, 64])
@pytest.mark.parametrize(("engine", "kind"), ROUTES)
def test_every_engine_on_hard_weights(engine, kind, rows, tmp_path, compare):
    matrices = hard(rows)
    encoding = by_id(kind)
    number = encoding.stored_as[0].number
    tensors = [
        (f"blk.{at}.ffn_up.weight", number, [256, rows],
         all_engines()[engine].quantize(w, encoding).tobytes())
        for at, w in enumerate(matrices.values())
    ]  # fmt: skip
    a = floats(tmp_path / "a", named(matrices))
    _, report = compare(a, save_gguf(tmp_path / "b.gguf", tensors))
    if kind == "ggml.q6_k":
        # Not a false alarm: Q6_K's scale of 256 weights is 1/4064 of the largest, and that is zero
        # in float16 from 1.2e-4 down. These rows are lost, and larger than the usual error.
        [finding] = report["findings"]
        assert finding["tensor"] == f"blk.{list(matrices).index('rows of 1e-3')}.ffn_up.weight"
        assert (finding["data"]["kind"], finding["count"]) == ("rows-lost", -(-rows // 3))
        return
    assert_sound(report, matrices)


# Quantizers in a few lines, apart from the package's own.

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def e2m1(x: np.ndarray) -> np.ndarray:
    code = np.searchsorted((FP4[1:] + FP4[:-1]) / 2, np.minimum(np.abs(x), 6))
    return (code | (np.signbit(x) << 3)).astype(np.uint8)


def paired(codes: np.ndarray) -> np.ndarray:
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def config(word: str, bits: int, kind: str, strategy: str, group: int | None = None) -> Any:
    told = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy,
            "group_size": group}  # fmt: skip
    parts = {"targets": ["Linear"], "format": word, "weights": told}
    return {"quant_method": "compressed-tensors", "format": word, "ignore": [],
            "config_groups": {"group_0": parts}}  # fmt: skip


def int8(w: np.ndarray) -> dict[str, np.ndarray]:
    most = np.abs(w).max(axis=1, keepdims=True)
    scale = np.where(most > 0, most / 127, 1).astype(np.float32)
    codes = np.rint(w / scale).clip(-128, 127).astype(np.int8)
    return {"weight": codes.view(np.int8), "weight_scale": scale}


def fp8(w: np.ndarray) -> dict[str, np.ndarray]:
    """Blocks of 128 x 128 with scales that are powers of two, as DeepSeek's."""
    down, along = -(-len(w) // 128), w.shape[1] // 128
    padded = np.zeros((down * 128, w.shape[1]))
    padded[: len(w)] = np.abs(w)
    most = padded.reshape(down, 128, along, 128).max(axis=(1, 3))
    scale = np.exp2(np.ceil(np.log2(np.where(most > 0, most, 448) / 448))).astype(np.float32)
    full = scale.repeat(128, 0).repeat(128, 1)[: len(w)]
    return {"weight": (w / full).astype(E4M3).view(np.int8), "weight_scale_inv": scale}


def mxfp4(w: np.ndarray) -> dict[str, np.ndarray]:
    groups = w.astype(np.float64).reshape(len(w), -1, 32)
    most = np.abs(groups).max(axis=2)
    power = np.where(most > 0, np.floor(np.log2(np.where(most > 0, most, 1))) - 2, -127)
    codes = e2m1(groups / np.exp2(power)[..., None]).reshape(w.shape)
    return {"weight_packed": paired(codes), "weight_scale": (power + 127).astype(np.uint8)}


def nvfp4(w: np.ndarray) -> dict[str, np.ndarray]:
    groups = w.astype(np.float64).reshape(len(w), -1, 16)
    most = np.abs(groups).max(axis=2)
    whole = np.float32(448 * 6 / most.max()) if most.any() else np.float32(1)
    scale = np.maximum(most / 6 * whole, 2.0**-9).astype(np.float32).astype(E4M3)
    codes = e2m1(groups / (scale.astype(np.float64) / whole)[..., None]).reshape(w.shape)
    return {"weight_packed": paired(codes), "weight_scale": scale.view(np.int8),
            "weight_global_scale": np.array([whole], np.float32)}  # fmt: skip


FLOAT8 = {"weight_scale"}
DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128]}  # fmt: skip
OTHERS: dict[str, tuple[Callable[[np.ndarray], dict[str, np.ndarray]], Any]] = {
    "mxfp4": (mxfp4, config("mxfp4-pack-quantized", 4, "float", "group", 32)),
    "nvfp4": (nvfp4, config("nvfp4-pack-quantized", 4, "float", "tensor_group", 16)),
    "fp8": (fp8, DEEPSEEK),
}


@pytest.mark.parametrize("rows", [8, 64])
@pytest.mark.parametrize("scheme", OTHERS)
def test_float_codes_on_hard_weights(scheme, rows, tmp_path, compare):
    """Of few distinct values, such codes can all be off by half of the widest gap."""
    quantize, told = OTHERS[scheme]
    matrices = hard(rows)
    parts = {name: quantize(w) for name, w in named(matrices).items()}
    a = floats(tmp_path / "a", named(matrices))
    with np.errstate(all="ignore"):
        _, report = compare(a, save(tmp_path / "b", parts, told))
    assert_sound(report, matrices)


def nearest(w: np.ndarray, group: int, symmetric: bool) -> Matrix:
    """Return 4-bit codes; scales that underflow are the smallest of their type."""
    groups = w.astype(np.float64).reshape(len(w), -1, group)
    low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
    scales = np.maximum(-low, high) / 7.5 if symmetric else (high - low) / 15
    scales = np.maximum(np.where(scales > 0, scales, 1), 2.0**-24).astype(np.float16)
    wide = scales.astype(np.float64)
    zeros = np.full(low.shape, 8.0) if symmetric else np.rint(-low / wide).clip(0, 15)
    codes = (np.rint(groups / wide[..., None]) + zeros[..., None]).clip(0, 15)
    return Matrix(codes.astype(int).reshape(w.shape), zeros.astype(int), scales, group)


@pytest.mark.parametrize("rows", [8, 64])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [32, 128])
def test_integer_codes_on_hard_weights(group, symmetric, rows, tmp_path, compare):
    matrices = hard(rows)
    told = {**GPTQ_CONFIG, "group_size": group, "sym": symmetric}
    parts = {name: nearest(w, group, symmetric).gptq() for name, w in named(matrices).items()}
    _, report = compare(floats(tmp_path / "a", named(matrices)), save(tmp_path / "b", parts, told))
    assert_sound(report, matrices)


def correlated(columns: int, outliers: int) -> np.ndarray:
    """Return the second moments of inputs that are alike, a few of them far larger."""
    rng = np.random.default_rng(columns + outliers)
    x = rng.normal(size=(4 * columns, 24)) @ rng.normal(size=(24, columns)) * 0.7
    x += rng.normal(size=x.shape)
    x[:, rng.integers(0, columns, outliers)] *= 30
    return x.T @ x / len(x)


def gptq(w: np.ndarray, sound: Matrix, moments: np.ndarray) -> Matrix:
    """Return codes chosen one column after the other (Frantar et al., 2022, algorithm 1)."""
    moments = moments + 0.01 * np.mean(np.diag(moments)) * np.eye(len(moments))
    inverse = np.linalg.cholesky(np.linalg.inv(moments)).T
    left, codes = w.astype(np.float64), np.empty_like(sound.codes)
    scales, zeros = (np.repeat(part.astype(np.float64), sound.group, axis=1)
                     for part in (sound.scales, sound.zeros))  # fmt: skip
    for at in range(w.shape[1]):
        codes[:, at] = (np.rint(left[:, at] / scales[:, at]) + zeros[:, at]).clip(0, 15)
        error = left[:, at] - (codes[:, at] - zeros[:, at]) * scales[:, at]
        left[:, at:] -= np.outer(error / inverse[at, at], inverse[at, at:])
    return replace(sound, codes=codes)


@pytest.mark.parametrize("rows", [8, 64])
@pytest.mark.parametrize("outliers", [0, 3])
def test_codes_chosen_together(outliers, rows, tmp_path, compare):
    """Columns make up for each other: single ones can be ten times off."""
    wanted = ("Laplace", "Student", "column", "huge", "signs", "ternary", "one", "sparse", "dead")
    matrices = {name: w for name, w in hard(rows).items() if name in wanted}
    moments = correlated(256, outliers)
    parts = {
        name: gptq(w, nearest(w, 128, symmetric=False), moments).gptq()
        for name, w in named(matrices).items()
    }
    told = {**GPTQ_CONFIG, "group_size": 128}
    _, report = compare(floats(tmp_path / "a", named(matrices)), save(tmp_path / "b", parts, told))
    assert_sound(report, matrices)
    worst = [x["cost"]["expected"]["code_ratio"] for x in report["result"]["layers"]]
    assert max(worst) > 1.1


# Importance.


def important(kind: str, rows: int) -> tuple[np.ndarray, bytearray]:
    source = weights(rows, 768, 3)
    importance = np.ones(768, np.float32)
    importance[[5, 300, 310, 700]] = 1e5
    engine = all_engines()["ggml"]
    return source, bytearray(engine.quantize(source, kind, importance).tobytes())


def weighed(tmp_path: Path, compare: Run, kind: str, source: np.ndarray, raw: bytes) -> Any:
    a = floats(tmp_path / "a", {NAME: source})
    number = by_id(kind).stored_as[0].number
    tensors = [("blk.0.ffn_up.weight", number, list(source.shape[::-1]), bytes(raw))]
    _, report = compare(a, save_gguf(tmp_path / "b.gguf", tensors))
    return report["findings"], report["result"]["layers"][0]


@pytest.mark.parametrize("kind", WEIGHED)
def test_groups_given_up_for_an_important_column(kind, tmp_path, compare):
    source, raw = important(kind, 128)
    findings, layer = weighed(tmp_path, compare, kind, source, raw)
    assert findings == []
    least = 1 if kind == "ggml.q2_k" else 2
    assert layer["cost"]["expected"]["worst_group"]["value"] > least


@pytest.mark.parametrize("column", [96, 320])
def test_a_wrong_scale_beside_important_columns_is_found(column, tmp_path, compare):
    """Nothing is excused in groups without an important column; nor is noise in one with one."""
    source, raw = important("ggml.q4_0", 128)
    at = (9 * 768 + column) // 32 * 18
    if column == 96:
        scale = np.frombuffer(raw[at : at + 2], np.float16) * np.float16(4)
        raw[at : at + 2] = scale.tobytes()
    else:
        row = slice(9 * 24 * 18, 10 * 24 * 18)
        raw[row] = np.random.default_rng(0).permutation(
            np.frombuffer(bytes(raw[row]), np.uint8).reshape(24, 18)).tobytes()  # fmt: skip
    findings, _ = weighed(tmp_path, compare, "ggml.q4_0", source, raw)
    assert [x["code"] for x in findings] == ["Q601"]
    assert findings[0]["location"]["row"] == 9


# What is found, and what it is called.


def one(tmp_path: Path, compare: Run, source: np.ndarray, matrix: Matrix) -> list[dict[str, Any]]:
    told = json.loads(json.dumps({**GPTQ_CONFIG, "group_size": matrix.group}))
    a = floats(tmp_path / "a", {NAME: source})
    found: list[dict[str, Any]] = compare(a, save(tmp_path / "b", {NAME: matrix.gptq()}, told))[1][
        "findings"
    ]
    return found


def test_a_lost_group_is_not_called_one_sided(tmp_path, compare):
    source = np.abs(weights(64, 256))
    matrix = rounded(source, 32)
    scales = matrix.scales.copy()
    scales[4, 2] = 0
    [finding] = one(tmp_path, compare, source, replace(matrix, scales=scales))
    assert (finding["code"], finding["data"]["kind"]) == ("Q601", "unexplained")
    assert (finding["location"]["row"], "inf" in finding["message"]) == (4, False)


def test_a_group_that_is_clipped_and_has_both_signs(tmp_path, compare):
    source = weights(64, 256)
    matrix = rounded(source, 32)
    scales = matrix.scales.copy()
    scales[4, 2] /= 8
    wide = np.repeat(scales[4].astype(np.float64), 32)
    zeros = np.repeat(matrix.zeros[4], 32)
    codes = matrix.codes.copy()
    codes[4] = (np.rint(source[4] / wide) + zeros).clip(0, 15)
    [finding] = one(tmp_path, compare, source, replace(matrix, scales=scales, codes=codes))
    assert (finding["data"]["kind"], finding["severity"]) == ("out-of-range", "error")
    assert (finding["location"]["row"], finding["location"]["column"]) == (4, 64)


@pytest.mark.parametrize("size", [1.0, 0.05])
def test_a_row_of_other_weights_is_found_among_larger_ones(size, tmp_path, compare):
    source = weights(64, 256)
    source[9] *= size
    other = source.copy()
    other[9] = weights(1, 256, 77) * size
    [finding] = one(tmp_path, compare, source, rounded(other, 32))
    assert (finding["code"], finding["location"]["row"]) == ("Q601", 9)


def test_one_column_of_other_weights_is_found(tmp_path, compare):
    source = weights(64, 256)
    other = source.copy()
    other[:, 100] = weights(64, 1, 78)[:, 0]
    [finding] = one(tmp_path, compare, source, rounded(other, 32))
    assert (finding["code"], finding["location"]["column"]) == ("Q601", 100)


def test_one_value_in_zeros_is_told_as_a_difference(tmp_path, compare):
    other = np.zeros((64, 256), np.float32)
    other[5, 7] = 1
    floats(tmp_path / "a", {NAME: np.zeros_like(other)})
    floats(tmp_path / "b", {NAME: other})
    _, told = compare(tmp_path / "a", tmp_path / "b")
    [finding] = told["findings"]
    assert (finding["code"], finding["location"]["row"]) == ("Q611", 5)


def test_columns_of_a_wide_weight_take_little_memory(monkeypatch):
    read = []
    sides = _Wide(1024, 1 << 18, read)
    monkeypatch.setattr("qassay.comparison.cost.remainder.sample", sides.sample)
    with pytest.raises(_EnoughError):
        columns_of(sides)
    assert read == [8]


class _EnoughError(Exception):
    pass


class _Wide:
    """Sides of a weight that nobody would want to have in memory."""

    def __init__(self, rows: int, width: int, read: list[int]) -> None:
        self.rows, self.width, self._read = rows, width, read

    def sample(self, _: object, rows: np.ndarray) -> None:
        self._read.append(rows.size)
        raise _EnoughError

"""Public bug reports that outputs of a device decide, by `diagnose`.

A test is called after its row. Rows of the project's collection whose capability includes
three-way or roundtrip; what weights alone decide is in `test_compare`, `test_checkpoints` and
`test_reports`. The devices here are simulated: NumPy that does what the report says a kernel did.
Not built, or not as reported:

C2 to C5, F1 to F4, F10, F13, G3, J2, K1, K6, K7, L6 to L8, Q4, S1, S2, S4, S5: in the other files.
A8, A9, N1: preflight; a cause that was never established, HQQ and MLX, which are no runtimes here.
M1, M2: codes of bitsandbytes inside other dtypes; decoding of nested absmax is tested with the
    fixtures of that family.
E8, P8, P12: which layers are quantized, or where shards are cut: no outputs are needed.
G7, P1: the float model was changed before it was quantized; that is no fault of a Linear.
H4: the simulated model that was tuned is needed, which nobody publishes.
K8, K9, O2: a decoder of a table, an exponent or zero points; what the file holds is tested with
    the checkpoints, and the fault on a device is one of a size that no fault of the list has.
F12, I5: scales or zero points of another group; the permutation of Marlin's tiles is not modelled,
    so groups that are rolled or held for a whole tile stand in.
Q1, Q8, P11: the cause is open. What is built is an overflow, as reported.
F9, Q11: kernels that were only said to be "worse"; a sound file and rounding clear the file.
S7: rotary embedding, no Linear: the weights are cleared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from qassay.cli.main import cli
from qassay.testing.device_cases import write_linear
from qassay.testing.faulty_devices import Device, Linear, random_linear, run, weights

Array = np.ndarray
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Return what `diagnose` says of the outputs of a device."""

    def call(linear: Linear, x: Array, y: Array) -> dict[str, Any]:
        write_linear(tmp_path / "w.npz", linear)
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "y.npy", y)
        done = CliRunner().invoke(
            cli,
            ["diagnose", "--weights", str(tmp_path / "w.npz"), "--inputs", str(tmp_path / "x.npy"),
             "--device", str(tmp_path / "y.npy"), "--no-pairs", "-f", "json"],
        )  # fmt: skip
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        made: dict[str, Any] = json.loads(done.stdout)
        return made

    return call


def inputs(rows: int = 8, k: int = 256, seed: int = 3) -> Array:
    from qassay.runtimes.sophgo.bfloat16 import bf16

    return bf16(np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32))


def product(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return what a kernel in float32 gives: no arithmetic of bf16."""
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    return (y if bias is None else y + bias).astype(np.float32)


def codes(made: dict[str, Any]) -> set[str]:
    return {one["code"] for one in made["findings"] if one["severity"] == "error"}


def verdict(made: dict[str, Any]) -> str:
    [one] = made["result"]["outputs"]
    return str(one["verdict"])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_f9_q11_s7_a_kernel_that_rounds_otherwise_clears_the_file(ask: Ask, dtype: type) -> None:
    linear = random_linear(1, 96, 256, 64)
    y = product(inputs(), weights(linear), linear.bias).astype(dtype).astype(np.float32)
    made = ask(linear, inputs(), y)
    assert verdict(made) in ("rounding", "explained")
    assert codes(made) == set()


def test_f12_scales_of_another_group(ask: Ask) -> None:
    linear = random_linear(2, 128, 256, 64)
    wrong = Linear(linear.codes, np.roll(linear.scales, 1, axis=1), linear.zeros, linear.bias, 64)
    made = ask(linear, inputs(), product(inputs(), weights(wrong), linear.bias))
    assert codes(made) == {"Q604"}
    assert verdict(made) in ("fault", "one-of", "likely")


def test_g6_a_kernel_with_its_own_group_size(ask: Ask) -> None:
    """Groups of 64, and a kernel that takes them for 128: K = 256, the scales unlike."""
    linear = random_linear(3, 64, 256, 64)
    at = np.arange(256) // 128  # the flat list of scales, with half as many a row
    flat_s, flat_z = linear.scales.ravel(), linear.zeros.ravel()
    places = (np.arange(64)[:, None] * 2 + at[None]) % flat_s.size
    weight = (linear.codes - flat_z[places].astype(np.float64)) * flat_s[places]
    made = ask(linear, inputs(), product(inputs(), weight, linear.bias))
    [finding] = [one for one in made["findings"] if one["severity"] == "error"]
    assert finding["code"] == "Q604"
    assert "group" in finding["message"]


def test_i5_zero_points_of_the_first_group_of_a_tile(ask: Ask) -> None:
    """Groups of 32 in tiles of 64: the second group of each tile takes the first one's zeros."""
    linear = random_linear(4, 64, 256, 32)
    held = np.repeat(linear.zeros[:, ::2], 2, axis=1)
    wrong = Linear(linear.codes, linear.scales, held, linear.bias, 32)
    x = np.zeros((8, 256), np.float32)
    x[np.arange(8), np.arange(8) * 32] = 1024  # one column of each group
    y = product(x, weights(wrong), linear.bias)
    made = ask(linear, x, y)
    assert codes(made)  # wrong, and never called rounding
    assert verdict(made) not in ("explained", "rounding")
    sound = product(x, weights(linear), linear.bias)
    assert np.array_equal(y[::2], sound[::2])  # the reports' evidence: first groups are right
    assert (y[1::2] != sound[1::2]).any(axis=1).all()


@pytest.mark.parametrize("reach", [3000.0, 40.0])
def test_o4_p11_q1_q8_a_sum_beyond_f16(ask: Ask, reach: float) -> None:
    """32 products of 3,000 are 96,000; weights and inputs of Q8 reach it by their number."""
    k = 256
    linear = random_linear(5, 64, k, 64)
    x = np.sign(weights(linear)[:4]).astype(np.float32)
    peak = float(np.abs(weights(linear)).sum(axis=1).max())
    x = x * np.float32(max(reach, 2.0 ** np.ceil(np.log2(1.5 * 65504 / peak))))
    x = np.concatenate([x, inputs(4, k)])
    exact = product(x, weights(linear), linear.bias)
    with np.errstate(over="ignore"):
        y = exact.astype(np.float16).astype(np.float32)
    assert np.isinf(y).any()
    made = ask(linear, x, y)
    found = {one["code"]: one for one in made["findings"]}
    assert "Q803" in found
    assert codes(made) <= {"Q803"}  # the file is good


def test_q8_finite_inputs_that_become_infinite(ask: Ask) -> None:
    """Inputs of 40 stay far below any limit: infinities there are no overflow of the sum."""
    linear = random_linear(6, 64, 256, 64)
    x = np.where(inputs() < 0, -40, 40).astype(np.float32)
    y = product(x, weights(linear), linear.bias)
    y[:, 5] = np.inf
    made = ask(linear, x, y)
    assert "Q801" in codes(made)
    assert "Q803" not in {one["code"] for one in made["findings"]}


def test_q5_a_layout_that_the_next_operation_does_not_know(ask: Ask) -> None:
    """Rows dealt to lanes for one kernel, read in order by another."""
    linear = random_linear(7, 128, 256, 64)
    order = np.arange(128).reshape(-1, 64).T.ravel()
    made = ask(linear, inputs(), product(inputs(), weights(linear)[order], linear.bias[order]))
    assert codes(made) == {"Q603"}


def test_q9_a_dot_product_that_wraps(ask: Ask) -> None:
    """A few sums are off by much: not rounding, and no fault of the file."""
    linear = random_linear(8, 64, 256, 64)
    y = product(inputs(), weights(linear), linear.bias)
    rng = np.random.default_rng(0)
    y[rng.integers(0, 8, 30), rng.integers(0, 64, 30)] *= np.float32(1.12)
    made = ask(linear, inputs(), y)
    assert codes(made) == {"Q616"}
    assert verdict(made) in ("part", "unexplained")


def test_q10_every_row_is_row_0_and_most_are_not_written(ask: Ask) -> None:
    linear = random_linear(9, 64, 256, 64)
    first = np.repeat(weights(linear)[:1], 64, axis=0)
    y = product(inputs(), first, None)
    y[:, 8:] = 0
    made = ask(linear, inputs(), y)
    assert codes(made)
    assert verdict(made) not in ("explained", "rounding")


def test_k11_a_global_scale_that_is_ignored(ask: Ask) -> None:
    """A global scale of 0.01 that the kernel has no argument for: 100 times too large.

    `diagnose` does not name that factor; the size of the error tells it, and no fault is blamed.
    """
    linear = random_linear(10, 64, 256, 64)
    y = run(Device(linear, weight=weights(linear) * 100), inputs(), "dev")
    made = ask(linear, inputs(), y)
    assert codes(made) == {"Q616"}
    assert verdict(made) in ("part", "unexplained")
    [output] = made["result"]["outputs"]
    assert output["device"]["relative"] > 10

"""The measured round trip: against plain arithmetic, and whatever the chunks and threads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qassay.encodings.registry import all_encodings, by_id
from qassay.run.model import Model
from qassay.run.options import CheckOptions
from qassay.run.quantize import QuantizeOptions, quantize
from qassay.run.quantize_error import has_steps, measure
from qassay.run.quantize_plan import Wish
from qassay.runtimes.registry import engine


def round_trip(values, name):
    encoding = by_id(name)
    stored = engine("ggml").quantize(values, name).reshape(-1)
    return measure(values.reshape(-1), encoding.dequantize(stored), stored, encoding)


@pytest.mark.parametrize("name", ["ggml.q8_0", "ggml.q4_1", "ggml.q6_k", "ggml.mxfp4", "bf16"])
def test_equals_plain_arithmetic(document, one_tensor, weights, name):
    values = weights(700, 512)
    made = document(one_tensor(values), "out.gguf", "--to", name)
    [tensor] = made["result"]["quantize"]["tensors"]
    with Model.open("out.gguf") as new:
        error = new.tensors["a.weight"].dequantize().astype(float) - values
    signal = values.astype(float)
    assert tensor["rmse"] == pytest.approx(math.sqrt((error**2).mean()), rel=1e-12)
    assert tensor["max_error"] == np.abs(error).max()
    snr = 10 * math.log10((signal**2).sum() / (error**2).sum())
    assert tensor["snr_db"] == pytest.approx(snr, rel=1e-12)
    assert tensor["compared"] == tensor["weights"] == values.size
    totals = made["result"]["quantize"]["totals"]
    assert totals["bytes"] == tensor["bytes"]
    assert totals["bits_per_weight"] == by_id(name).bits_per_weight()
    assert totals["source_bits_per_weight"] == 32


def test_steps_are_those_of_the_stored_scale():
    values = np.zeros((1, 64), np.float32)
    values[0, :4] = 127, 0.5, -0.25, 3.25
    values[0, 32:34] = 12.7, 0.17
    trip = round_trip(values, "ggml.q8_0")
    step = float(np.float16(np.float32(12.7) / np.float32(127)))
    assert trip.max_error == 0.5
    assert trip.max_steps == 0.5
    assert abs(0.17 - 2 * step) / step < 0.5


@pytest.mark.parametrize("name", sorted(engine("ggml").routes))
def test_healthy_weights_stay_within_a_few_steps(weights, name):
    trip = round_trip(weights(64, 512), name)
    assert (trip.max_steps is not None) == has_steps(by_id(name))
    if trip.max_steps is not None:
        assert 0.4 < trip.max_steps < 5
    assert trip.snr_db > 5


def test_which_encodings_have_steps():
    with_steps = {name for name, each in all_encodings().items() if has_steps(each)}
    assert {"ggml.q4_0", "ggml.q5_1", "ggml.q8_0", "ggml.q2_k", "ggml.q6_k"} <= with_steps
    assert not with_steps & {"f16", "bf16", "i8", "ggml.mxfp4", "ggml.iq4_nl", "ggml.iq4_xs"}


def test_blocks_without_a_scale_have_no_steps_and_hide_nothing():
    lost = np.full((2, 32), 1e-7, np.float32)
    trip = round_trip(lost, "ggml.q8_0")
    assert trip.max_steps is None
    assert trip.max_error == float(np.float32(1e-7))
    assert trip.snr_db == 0
    zero = round_trip(np.zeros((2, 32), np.float32), "ggml.q8_0")
    assert (zero.rmse, zero.snr_db, zero.max_error) == (0, None, 0)


def test_values_that_are_not_finite_are_counted_on_both_sides():
    values = np.full((4, 64), 2.0, np.float32)
    values[0, 0], values[1, 1] = np.nan, 1e30
    with np.errstate(over="ignore"):
        stored = values.astype("<f2").view(np.uint8).reshape(-1)
    trip = measure(values.reshape(-1), by_id("f16").dequantize(stored), stored, by_id("f16"))
    assert (trip.nonfinite_source, trip.nonfinite_result) == (1, 2)
    assert trip.compared == values.size - 2
    assert (trip.rmse, trip.max_error, trip.snr_db) == (0, 0, math.inf)
    nothing = measure(
        np.full(32, np.nan, np.float32), np.zeros(32, np.float32), stored, by_id("f16")
    )
    assert (nothing.rmse, nothing.compared, nothing.nonfinite_source) == (None, 0, 32)


def test_doubles_are_compared_as_doubles(document, tmp_path):
    from qassay.testing.safetensors_writer import write_safetensors

    values = np.linspace(-1, 1, 256).reshape(4, 64)
    values[0, 0] = 1e300
    path = tmp_path / "d.safetensors"
    path.write_bytes(write_safetensors([("a.weight", "F64", [4, 64], values.tobytes())], align=64))
    made = document(path, "out.gguf", "--to", "F32", "--allow", "Q401,Q501")
    [tensor] = made["result"]["quantize"]["tensors"]
    assert (tensor["nonfinite_source"], tensor["nonfinite_result"]) == (0, 1)
    assert 0 < tensor["max_error"] < 1e-7


def test_many_small_tensors_are_measured_one_by_one(document, run, tmp_path, weights, monkeypatch):
    from qassay.run import quantize_stream
    from qassay.testing.safetensors_writer import write_safetensors

    tensors = []
    for at in range(80):  # of several lengths, types and troubles
        values = weights(1 + at % 3, 32 * (1 + at % 5), at)
        if at % 7 == 0:
            values[0, 3] = np.nan
        kind = "F16" if at // 4 % 2 else "F32"
        data = values.astype("<f2" if kind == "F16" else "<f4").tobytes()
        tensors.append((f"layers.{at}.weight", kind, list(values.shape), data))
    path = tmp_path / "many.safetensors"
    path.write_bytes(write_safetensors(tensors, align=64))
    seen = {}
    for together in (0, 1 << 13):  # none is small, or all are
        monkeypatch.setattr(quantize_stream, "SMALL", together)
        made = document(path, f"{together}.gguf", "--to", "Q8_0", "--allow", "Q401,Q504")
        told = made["result"]["quantize"]["tensors"]
        seen[together] = (told, (tmp_path / f"{together}.gguf").read_bytes())
    assert seen[0] == seen[1 << 13]
    assert sum(each["nonfinite_source"] for each in told) == 12
    lines = run(path, "0.gguf", "--to", "Q8_0", "--allow", "Q401,Q504", "--force").stdout
    assert "and 16 more (-v lists all, as the JSON report does)" in lines
    table = lines.partition("Round trip, the worst tensors first")[2].splitlines()
    assert all("  1 to " in line for line in table[2:14])  # NaN before all others
    lines = run(path, "0.gguf", "--to", "Q8_0", "--allow", "Q401,Q504", "--force", "-v").stdout
    assert "more (-v" not in lines
    assert all(f"  layers.{at}.weight " in lines for at in range(80))


def test_lossless_is_said_so(run, document, floats):
    made = document(floats, "out.gguf", "--to", "F32")["result"]["quantize"]["tensors"]
    exact = {each["name"]: each for each in made}["down.weight"]
    assert (exact["rmse"], exact["snr_db"]) == (0, "Infinity")
    assert "exact" in run(floats, "out.gguf", "--to", "F32", "--force").stdout


def test_chunks_and_threads_do_not_show(weights, one_tensor):
    source = one_tensor(weights(3000, 288))
    seen = set()
    for number, (chunk, jobs) in enumerate([(1, 1), (1, 3), (200_000, 2), (1 << 20, 1)]):
        options = QuantizeOptions(
            Wish.parse("ggml", "Q5_1"), check=CheckOptions(jobs=jobs), chunk_weights=chunk
        )
        out = f"out{number}.gguf"
        [written] = quantize(source, out, options).tensors
        error = written.error
        with open(out, "rb") as stream:  # noqa: PTH123
            seen.add((stream.read(), error.rmse, error.snr_db, error.max_steps, error.max_error))
    assert len(seen) == 1


def test_progress_tells_of_every_byte(floats):
    phases = {}

    def watch(phase, nbytes):
        phases[phase] = [nbytes, 0]

        def step(done):
            phases[phase][1] += done

        return step

    quantize(floats, "out.gguf", QuantizeOptions(Wish.parse("ggml", "Q8_0"), watch=watch))
    assert list(phases) == ["checking the source", "quantizing", "checking the result"]
    assert all(total == done for total, done in phases.values())


@pytest.mark.parametrize("to", ["F32", "F16", "Q8_0", "Q4_K"])
def test_any_bit_pattern_goes_through(document, one_tensor, to):
    """Signalling NaN, infinities, denormals and the largest numbers: counted, and no warning."""
    rng = np.random.default_rng(9)
    values = rng.integers(0, 1 << 32, (64, 256), np.uint32)
    values[0, :4] = 0x7F800001, 0xFF800001, 0x7FC00000, 0x00000001
    bad = int((~np.isfinite(values.view(np.float32))).sum())
    words = ["--allow", "Q401,Q50", "--fail-on", "never"]
    made = document(one_tensor(values.view(np.float32)), "out.gguf", "--to", to, *words)
    [tensor] = made["result"]["quantize"]["tensors"]
    assert tensor["nonfinite_source"] == bad
    assert tensor["compared"] <= tensor["weights"] - bad


@pytest.mark.parametrize("kernels", ["reference", "fast"])
def test_tensors_that_lie_askew(document, weights, monkeypatch, kernels):
    from qassay.testing.safetensors_writer import write_safetensors

    monkeypatch.setenv("QASSAY_KERNELS", kernels)
    values = weights(8, 256)
    tensors = [("one", "I8", [1], b"x")]
    for dtype, kind in (("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2")):
        tensors.append((dtype, dtype, [8, 256], values.astype(kind).tobytes()))
    with open("askew.safetensors", "wb") as stream:  # noqa: PTH123
        stream.write(write_safetensors(tensors, align=1))
    for to in ("Q4_K", "Q8_0", "F32"):
        made = document("askew.safetensors", "out.gguf", "--to", to, "--force")
        rmse = {each["name"]: each["rmse"] for each in made["result"]["quantize"]["tensors"]}
        assert rmse["F64"] == pytest.approx(rmse["F32"], abs=1e-12)

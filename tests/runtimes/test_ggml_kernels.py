"""The fast quantizers equal the reference bit for bit, on anything, however work is divided."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import awkward
import numpy as np
import pytest
from ggml_cases import FAST, NAMES, WEIGHTED
from hypothesis import given, settings
from hypothesis import strategies as st

from qassay.encodings import by_id
from qassay.kernels import quantize_reference_parts as parts
from qassay.runtimes.ggml import GgmlEngine

CASES = [(name, False) for name in FAST] + [(name, True) for name in WEIGHTED]
MODULES = {"Q8_0": "legacy", "MXFP4": "legacy", "Q6_K": "symmetric", "Q3_K": "symmetric"}
MODULES |= dict.fromkeys(["Q2_K", "Q4_K", "Q5_K"], "affine")
MODULES |= dict.fromkeys(["Q4_0", "Q4_1", "Q5_0", "Q5_1"], "searched")


def fast(name: str, x: np.ndarray, importance: np.ndarray | None, jobs: int) -> np.ndarray:
    module = import_module(f"qassay.kernels.quantize_fast_{MODULES[name]}")
    written: np.ndarray = getattr(module, name.lower())(x, importance, jobs=jobs)
    return written


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from([*awkward.MAKERS]),
    weights=st.sampled_from(awkward.IMPORTANCE),
    rows=st.integers(1, 40),
    blocks=st.integers(1, 3),
)
@pytest.mark.parametrize(("name", "weighted"), CASES)
def test_fast_equals_reference(
    name: str, weighted: bool, seed: int, kind: str, weights: str, rows: int, blocks: int
) -> None:
    width = by_id(NAMES[name]).block * blocks
    x = awkward.rows(kind, seed, rows, width)
    importance = awkward.importance(weights, seed, width) if weighted else None
    ours = GgmlEngine.quantize(x, NAMES[name], importance, kernels="fast")
    truth = GgmlEngine.quantize(x, NAMES[name], importance, kernels="reference")
    wrong = np.flatnonzero((ours != truth).any(axis=1))
    assert not wrong.size, wrong


@settings(max_examples=60, deadline=None)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
@pytest.mark.parametrize(("name", "weighted"), CASES)
def test_fast_equals_reference_on_any_bits(name: str, weighted: bool, bits: list[int]) -> None:
    width = by_id(NAMES[name]).block
    x = np.resize(np.array(bits, np.uint32), width).view(np.float32)
    importance = np.ones(width, np.float32) if weighted else None
    ours = GgmlEngine.quantize(x, NAMES[name], importance, kernels="fast")
    assert np.array_equal(
        ours, GgmlEngine.quantize(x, NAMES[name], importance, kernels="reference")
    )


@pytest.mark.parametrize(("name", "weighted"), CASES)
def test_any_number_of_threads(name: str, weighted: bool) -> None:
    """Wide rows, and enough of them that threads are used; one row holds a NaN."""
    x = awkward.rows("normal", 11, 53, 2560)
    x[30, 700] = np.nan
    importance = awkward.importance("usual", 11, 2560) if weighted else None
    one = fast(name, x, importance, 1)
    for jobs in (2, 3, 7):
        assert np.array_equal(fast(name, x, importance, jobs), one)
    reference = GgmlEngine.quantize(x, NAMES[name], importance, kernels="reference")
    assert np.array_equal(one, reference)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K"])
def test_weights_that_cannot_be_written_to_or_lie_at_odd_addresses(name: str) -> None:
    x = awkward.rows("normal", 12, 5, 512)
    wanted = GgmlEngine.quantize(x, NAMES[name])
    raw = np.empty(x.nbytes + 1, np.uint8)
    raw[1:] = x.reshape(-1).view(np.uint8)
    odd = raw[1:].view(np.float32).reshape(x.shape)
    odd.flags.writeable = False
    assert np.array_equal(GgmlEngine.quantize(odd, NAMES[name]), wanted)


def test_halves_equal_numpy() -> None:
    """The reference's halves: every half and the float32 around the ties between them."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = every[np.isfinite(every)]
    ties = np.abs(finite).view(np.uint32)[:, None] + np.array([0, 0xFFF, 0x1000, 0x1001], np.uint32)
    x = np.sort(np.concatenate([finite, ties.reshape(-1).view(np.float32)]))
    with np.errstate(over="ignore"):
        assert np.array_equal(parts.half(x), x.astype(np.float16).view(np.uint16))
    with np.errstate(invalid="ignore"):
        nan = np.array(awkward.PAYLOADS, np.uint32).view(np.float32)
        assert set(parts.half(nan).tolist()) == {0x7E00, 0xFE00}


ASSEMBLY = """
import re, sys
import numpy as np
from importlib import import_module
from numba.core.registry import CPUDispatcher

for name in sys.argv[1:]:
    module_name, function = name.split(":")
    module = import_module("qassay.kernels.quantize_fast_" + module_name)
    x = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(2, 512)
    getattr(module, function)(x, None)
    if module_name != "legacy":
        getattr(module, function)(x, np.ones(512, np.float32))

seen = 0
for module_name in {"legacy", *(name.split(":")[0] for name in sys.argv[1:])}:
    module = import_module("qassay.kernels.quantize_fast_" + module_name)
    for key, value in vars(module).items():
        if not isinstance(value, CPUDispatcher) or not value.targetoptions.get("nogil"):
            continue
        if value.__module__ != module.__name__ or not value._can_compile:
            continue
        if not re.match(r"_(q\\d|mxfp4|means)", key):
            continue
        for text in value.inspect_asm().values():
            seen += 1
            assert re.search(r"mulps|mulss|fmul", text), f"{key}: no product: not the kernel"
            fused = re.findall(r"v?fn?m(?:add|sub)\\w*|fmla|fmls", text)
            assert not fused, (key, fused[:3])
            double = re.findall(r"cvts[sd]2s[sd]|cvtp[sd]2p[sd]|fcvt\\s+d", text)
            assert not double, (key, double[:3])
assert seen, "no kernel was compiled"
print(seen)
"""


def check_assembly(tmp_path: Path, *names: str) -> None:
    # Numba shows no assembly of code that it took from its cache: give it an empty one.
    done = subprocess.run(
        [sys.executable, "-c", ASSEMBLY, *names],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        check=True,
        stdout=subprocess.PIPE,
    )
    assert int(done.stdout) >= len(names)


def test_the_main_kernels_hold_no_fused_multiply_add(tmp_path: Path) -> None:
    """A fused product and sum rounds once where C rounds twice: up to a quarter of rows differ."""
    check_assembly(tmp_path, "legacy:q8_0", "affine:q4_k", "symmetric:q6_k")


@pytest.mark.slow
def test_no_kernel_holds_a_fused_multiply_add(tmp_path: Path) -> None:
    check_assembly(tmp_path, *(f"{module}:{name.lower()}" for name, module in MODULES.items()))

"""Cases of case files that are about a simulated device (see `recipes`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qassay.comparison.attribution.probes import probes
from qassay.comparison.attribution.setup import setup_of
from qassay.core.container import Container
from qassay.rules.base import ModelFacts
from qassay.run.check import CheckResult
from qassay.run.diagnose import Asked, diagnose
from qassay.run.options import CheckOptions
from qassay.testing.faulty_devices import (
    Device,
    Fault,
    Linear,
    faults,
    nameless,
    random_linear,
    run,
)


def run_device_case(recipe: Mapping[str, Any], folder: Path, options: CheckOptions) -> CheckResult:
    """Simulate the device that a recipe describes and diagnose it.

    Raises:
        KeyError: No fault is called that.
    """
    about = dict(recipe["linear"])
    n, k, group, seed = about["n"], about["k"], about["group"], about.get("seed", 1)
    more = {"symmetric": about.get("symmetric", False), "bias": about.get("bias", True)}
    linear = random_linear(seed, n, k, group, **more)
    fault = fault_named(recipe.get("fault"), linear, random_linear(seed + 1, n, k, group, **more))
    x = inputs_of(recipe, linear)
    y = run(fault.plant(linear), x, recipe.get("arithmetic", "dev"), seed)
    write_linear(folder / "w.npz", linear)
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "y.npz", y=y)
    asked = Asked(folder / "w.npz", folder / "x.npz", folder / "y.npz",
                  pairs=recipe.get("pairs", False))  # fmt: skip
    done = diagnose(asked, options)
    facts = ModelFacts(Container(path="y.npz", format="npz"))
    return CheckResult(facts, done.findings, [])


def inputs_of(recipe: Mapping[str, Any], linear: Linear) -> np.ndarray[Any, Any]:
    """Return the inputs of `qassay probe`, or as many random rows as the recipe says."""
    if "random" in recipe:
        shape = (recipe["random"], linear.codes.shape[1])
        return np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    return probes(setup_of(linear.canonical(), linear.bias, linear.bits)).x


def fault_named(name: str | None, linear: Linear, other: Linear) -> Fault:
    """Return the fault of that name; None is a sound device.

    Raises:
        KeyError: There is none.
    """
    known = {"NaN everywhere": Fault("NaN", "NaN everywhere", _lost)}
    known |= {one.name: one for one in (*faults(linear, other), *nameless(linear))}
    return Fault("none", "none", Device) if name is None else known[name]


def _lost(linear: Linear) -> Device:
    return Device(linear, after=lambda y, _: np.where(np.arange(y.shape[1]) == 5, np.nan, y))


def write_linear(path: Path, linear: Linear) -> None:
    """Write a 4-bit Linear as tpu-mlir's converter does: qweight, scales, qzeros, bias."""
    packed = linear.codes[:, 0::2] | linear.codes[:, 1::2] << 4
    arrays = {"qweight": packed, "scales": linear.scales, "qzeros": linear.zeros.astype(np.uint8)}
    if linear.bias is not None:
        arrays["bias"] = linear.bias
    np.savez(path, **arrays)

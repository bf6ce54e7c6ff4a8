"""One Linear compiled by the real tpu-mlir, if there is one: see docs/sophgo.md.

QASSAY_TPU_MLIR_PYTHON names a Python 3.10 in whose environment `model_deploy` works. What qassay
says of the Linear (does it fit, in which order are scales, which numbers come out) is compared
with what that version writes and with what its model of the chip computes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qassay.run.explain_log import explain_log
from qassay.runtimes.sophgo.arithmetic import linear, model_of
from qassay.runtimes.sophgo.bfloat16 import bf16, bf16_bits
from qassay.runtimes.sophgo.chips import Misfit, behaviour
from qassay.runtimes.sophgo.layout import reorder
from qassay.runtimes.sophgo.mlir import read_mlir
from qassay.runtimes.sophgo.packing import pack
from qassay.runtimes.sophgo.weight_file import weights_of

PYTHON = os.environ.get("QASSAY_TPU_MLIR_PYTHON", "")
CHIP = "bm1684x"
K, G, ROWS = 256, 64, 4

pytestmark = pytest.mark.skipif(not PYTHON, reason="QASSAY_TPU_MLIR_PYTHON names no tpu-mlir")

TOP = """\
#loc = loc(unknown)
module @live attributes {{module.chip = "ALL", module.platform = "LLM", \
module.state = "TOP_F32", module.top_run_mode = "STATIC", module.weight_file = "live_w.npz"}} {{
  func.func @main(%arg0: tensor<1x{m}x{k}xf32> loc(unknown)) -> tensor<1x{m}x{n}xf32> {{
    %0 = "top.None"() : () -> none loc(#loc)
    %1 = "top.Input"(%arg0) : (tensor<1x{m}x{k}xf32>) -> tensor<1x{m}x{k}xf32> loc(#loc1)
    %2 = "top.Weight"() : () -> tensor<1x1x{n}xf32> loc(#loc2)
    %3 = "top.Weight"() : () -> tensor<{n}x{half}xui8> loc(#loc3)
    %4 = "top.Weight"() : () -> tensor<{n}x{w}xf32> loc(#loc4)
    %5 = "top.Weight"() : () -> tensor<{n}x{w}xui8> loc(#loc5)
    %6 = "top.A16MatMul"(%1, %3, %4, %5, %2) {{dq_type = "NONE", q_group_size = {g} : i64, \
right_transpose = true, weight_bits = 4 : i64}} : (tensor<1x{m}x{k}xf32>, tensor<{n}x{half}xui8>, \
tensor<{n}x{w}xf32>, tensor<{n}x{w}xui8>, tensor<1x1x{n}xf32>) -> tensor<1x{m}x{n}xf32> loc(#loc6)
    return %6 : tensor<1x{m}x{n}xf32> loc(#loc)
  }} loc(#loc)
}} loc(#loc)
#loc1 = loc("in0")
#loc2 = loc("bias")
#loc3 = loc("qweight")
#loc4 = loc("scales")
#loc5 = loc("qzeros")
#loc6 = loc("linear0")
"""


class Case:
    """A random Linear and what the compiler makes of it."""

    def __init__(self, folder: Path, n: int) -> None:
        rng = np.random.default_rng(n)
        self.folder, self.n = folder, n
        self.codes = rng.integers(0, 16, (n, K)).astype(np.uint8)
        self.zeros = rng.integers(0, 16, (n, K // G)).astype(np.uint8)
        self.scales = rng.uniform(0.002, 0.03, (n, K // G)).astype(np.float32)
        self.bias = rng.standard_normal((1, 1, n)).astype(np.float32)
        self.x = rng.standard_normal((1, ROWS, K)).astype(np.float32)
        # Not compressed: tpu-mlir's reader takes no other archives.
        np.savez(folder / "live_w.npz", qweight=pack(self.codes, 4), qzeros=self.zeros,
                 scales=self.scales, bias=self.bias)  # fmt: skip
        np.savez(folder / "live_in.npz", in0=self.x)
        text = TOP.format(n=n, k=K, g=G, m=ROWS, w=K // G, half=K // 2)
        (folder / "live.mlir").write_text(text)

    def tool(self, *words: str) -> subprocess.CompletedProcess[str]:
        bin_folder = Path(PYTHON).parent
        env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
        env.pop("PYTHONPATH", None)
        return subprocess.run([bin_folder / words[0], *words[1:]], cwd=self.folder, env=env,
                              capture_output=True, text=True, check=False,
                              timeout=600)  # fmt: skip

    def compile(self) -> subprocess.CompletedProcess[str]:
        return self.tool("model_deploy", "--mlir", "live.mlir", "--quantize", "W4BF16",
                         "--q_group_size", str(G), "--chip", CHIP,
                         "--model", "live.bmodel")  # fmt: skip

    def final(self) -> Any:
        return read_mlir(self.folder / f"live_{CHIP}_w4bf16_final.mlir")

    def device(self) -> np.ndarray[Any, Any]:
        done = self.tool("model_runner", "--input", "live_in.npz", "--model", "live.bmodel",
                         "--output", "live_dev.npz")  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        with np.load(self.folder / "live_dev.npz") as stored:
            names = [name for name in stored.files if name.startswith("linear0")]
            assert len(names) == 1, stored.files
            array: np.ndarray[Any, Any] = stored[names[0]]
            return array.reshape(ROWS, self.n)

    def predicted(self, model: Any) -> np.ndarray[Any, Any]:
        scales = bf16(self.scales)
        return linear(self.x[0], self.codes, scales, self.zeros, self.bias, model=model)


@pytest.fixture(scope="session")
def version() -> str:
    ask = "from importlib.metadata import version; print(version('tpu-mlir'))"
    done = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("n", [128, 192])
def test_a_linear_that_fits(tmp_path: Path, version: str, n: int) -> None:
    acts = behaviour(CHIP, version, q_group_size=G)
    assert acts.fits(n)
    case = Case(tmp_path, n)
    done = case.compile()
    assert done.returncode == 0, done.stdout + done.stderr
    module = case.final()
    [record] = [one for one in module.linears if one.n == n]
    assert record.quantized
    ours = reorder(bf16_bits(case.scales), case.zeros, lanes=acts.chip.lanes, branch=acts.branch)
    with weights_of(module, tmp_path) as weights:
        np.testing.assert_array_equal(weights.read(record.scale.name), ours.scales)
        np.testing.assert_array_equal(weights.read(record.zero_point.name), ours.zeros)
    computed = model_of(CHIP, version, n=n, q_group_size=G)
    assert computed is not None
    np.testing.assert_array_equal(case.device(), case.predicted(computed.model))


def test_a_linear_that_does_not_fit(tmp_path: Path, version: str) -> None:
    n = 96
    acts = behaviour(CHIP, version, q_group_size=G)
    assert not acts.fits(n)
    case = Case(tmp_path, n)
    done = case.compile()
    if acts.on_misfit is Misfit.ABORT:
        assert done.returncode != 0
        log = tmp_path / "build.log"
        log.write_text(done.stdout + done.stderr)
        [finding] = explain_log(log).findings
        assert finding.data["failure"] == "scale-channel"
        assert finding.data["step"] == "weight-reorder"
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any(one.quantized for one in case.final().linears)
    computed = model_of(CHIP, version, n=n, q_group_size=G)
    assert computed is not None
    np.testing.assert_array_equal(case.device(), case.predicted(computed.model))

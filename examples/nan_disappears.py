"""The NaN that disappears: finite on candle's CPU path, NaN on Metal and on the dequantized path.

On the CPU a quantized product first quantizes the activations, and a NaN among them becomes 0. So
"finite on CPU, NaN on Metal" means that the NaN was born in an earlier layer; look for it with
CANDLE_DEQUANTIZE_ALL=1.

    python examples/nan_disappears.py
"""

from __future__ import annotations

import numpy as np

import qassay

rng = np.random.default_rng(0)
weights = rng.normal(0, 0.1, (4, 64)).astype(np.float32)
raw = qassay.engine("candle").quantize(weights, "Q8_0")
matrix = (raw, "Q8_0", weights.shape)

x = rng.normal(0, 1, 64).astype(np.float32)
x[1] = np.nan
without = x.copy()
without[1] = 0

for path in ("candle:cpu", "candle:metal", "candle:dequantize-all"):
    print(f"{path:22}", *(f"{value:9.5f}" for value in qassay.linear(x, matrix, on=path)[0]))

float_result = qassay.linear(x, weights, on="candle:dequantize-all")[0]
print(f"{'float32 weights':22}", *(f"{value:9.5f}" for value in float_result))

# The CPU computed as if the NaN had been zero.
cpu, zeroed = (qassay.linear(each, matrix, on="candle:cpu") for each in (x, without))
print("\ncandle:cpu took the NaN for a zero:", np.array_equal(cpu, zeroed))

# And a file cannot tell: a NaN in the weights leaves a sound block behind.
weights[2, 5] = np.nan
stored = qassay.engine("candle").quantize(weights, "Q8_0")
print("a NaN in the weights is stored as code", stored[2, 2 + 5].view(np.int8))
try:
    qassay.check_array(weights, to="Q8_0", profile="candle")
except qassay.DamagedError as error:
    print("so look before quantizing:", error.findings[0].message)

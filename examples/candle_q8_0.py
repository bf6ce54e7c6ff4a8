"""What a Q8_0 round trip does to six blocks, and what a check before it says of each.

The table of a published write-up on candle-core 0.11.0, computed anew: two blocks of 32 floats,
`i/31 - 0.5`, of which only block 0 is changed.

    python examples/candle_q8_0.py            # candle's arithmetic
    python examples/candle_q8_0.py ggml       # that of the C reference
"""

from __future__ import annotations

import sys

import numpy as np

from qassay.runtimes.arithmetic_published import round_trips
from qassay.runtimes.registry import engine


def shown(values: np.ndarray) -> str:
    """Return float32 numbers with the fewest digits that give each back, as Rust prints them."""
    return ", ".join(one_shown(value) for value in values)


def one_shown(value: np.float32) -> str:
    if np.isnan(value):
        return "NaN"
    size = abs(float(value))
    if np.isinf(value) or size == 0 or 1e-5 <= size < 1e7:
        return np.format_float_positional(value, trim="-" if size >= 1e6 else "0")
    return np.format_float_scientific(value, trim="-", exp_digits=1).replace("e+", "e")


name = sys.argv[1] if len(sys.argv) > 1 else "candle"
print(f"Q8_0 by {name}: first values of block 0 and of block 1, before and after")
for row in round_trips(engine(name)):
    print()
    print(row.case)
    print(f"  in       {shown(row.before[:3])}")
    print(f"  block 0  {shown(row.after[:3])}")
    print(f"  block 1  {shown(row.after[32:34])}")
    print(f"  check    {row.says}")

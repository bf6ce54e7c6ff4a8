"""Which rounding wrote these bytes? Told from source and result alone, the program unnamed.

A correct quantizer is off by half a step at most. `(int)(x + 0.5)` cuts toward zero: right for
positive numbers, up to a step and a half off for negative ones.

    python examples/rounding_from_data.py
"""

from __future__ import annotations

import numpy as np

from qassay.runtimes.arithmetic_published import sine_block
from qassay.runtimes.arithmetic_rounding import rounding_profile
from qassay.runtimes.registry import engine

tensor = np.random.default_rng(2).normal(0, 0.5, (32, 256)).astype(np.float32)
for title, source in (("the published block", sine_block()), ("a tensor", tensor)):
    print(title)
    # The files of three programs; `rounding_profile` is not told whose.
    for file, program in (("a", "ggml"), ("b", "kestrel"), ("c", "kestrel-legacy")):
        stored = engine(program).quantize(source, "Q8_0")
        profile = rounding_profile(source, stored, "Q8_0")
        print(
            f"  file {file}: {profile.words()} (positives up to {profile.max_positive:.2f} steps,"
            f" negatives up to {profile.max_negative:.2f})"
        )

"""From how much on an error is looked at, and reported.

The limits were set by measuring sound files: round to nearest, searched scales (ggml's K-quants),
and methods that move codes away from the nearest on purpose (GPTQ, AutoRound). Sound tensors stay
below 1.4 times what they should cost, sound rows below 1.8; a row that is another row's, a zero
point off by one or a cast that cuts off the wrong way are above 2.5. What sound quantizers do
beyond that (importance, weights that are few distinct values, scales of the smallest rows) is
known to `secondlook`.
"""

from __future__ import annotations

LOOK = 1.9
"""Times what it should cost, from which a tensor is looked at more closely."""
LOOK_ROW = 2.4
LOOK_GROUP = 4.0
LOOK_STEPS = 3.0
BIAS = 0.2
"""Steps of mean error of one sign, beyond that of the nearest codes (sound files: below 0.02)."""
ABOVE = 2.5
"""Times what it should cost, from which a tensor is reported."""
ABOVE_ROW = 4.0
ABOVE_GROUP = 6.0
ABOVE_COLUMN = 5.0
NEAREST = 1.05
"""Times what the nearest codes would cost, up to which codes count as the nearest."""
ACCEPT = 2.0
"""What is left of the error of a fault that is undone, at most."""
GAIN = 0.6
"""What is left of the error where the fault was, as a share of what there was, at most."""
FEW = 24
"""Rows, below which one column is like another, or costs a lot, by accident."""
SEVERE = 6.0
"""Times what it should cost, from which nothing of a 4-bit weight or row is left: an error."""

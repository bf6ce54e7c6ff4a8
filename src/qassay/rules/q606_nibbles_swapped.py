"""Q606."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import TransformationRule


class NibblesSwapped(TransformationRule, code="Q606", name="nibbles-swapped"):
    """Packed integers lie in another order inside their bytes or words than they are read in.

    ## What it does
    `qassay compare` reports codes or zero points that are equal once the two nibbles of every byte
    are swapped, the bytes or nibbles of every 32-bit word are reversed, the halves of a block are
    taken for neighbours (or the other way round), or AWQ's order of columns (0, 2, 4, 6, 1, 3, 5,
    7) is put in or taken out: in the codes, in the zero points, or in both.

    ## Why it is bad
    Each weight takes the code of a neighbour. Norms and histograms stay as they are, and a model
    says something that looks nearly like text.

    ## How to fix it
    Pack in the order that the format names: GPTQ and compressed-tensors low bits first, AWQ GEMM
    in its own order for codes and for zero points, bitsandbytes high nibble first, ggml the two
    halves of a block.

    ## Example
    `model.layers.0.mlp.up_proj.qweight`: the AWQ order of columns in a word is missing, in zero
    points; with that undone the weight is equal to 'model.layers.0.mlp.up_proj.weight' of the
    first model
    """

    severity = Severity.ERROR
    help = "pack codes and zero points in the order that the format names"
    since = "0.1"

"""Q603."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import TransformationRule


class ChannelsPermuted(TransformationRule, code="Q603", name="channels-permuted"):
    """Rows or columns of a weight stand in another order than the other model's.

    ## What it does
    `qassay compare` looks for a permutation of rows (output channels) or columns (input features)
    that turns one weight into the other, of the codes alone or of codes and scales together, and
    reports it only where it holds for every row. The permutation is in the JSON report.
    llama.cpp's converter permutes the rows of Q and K of Llama models; between a GGUF file and a
    Hugging Face folder that is expected, and no finding.

    ## Why it is bad
    Every output channel, or every product, takes the weights of another one. Norms, histograms and
    statistics of the tensor do not change, so that nothing else notices.

    ## How to fix it
    Undo the permutation, or find the step that made it: lanes that were dealt out and not dealt
    back, an act-order that was applied twice, rows interleaved for another kernel, a Q or K that
    was converted twice.

    ## Example
    `blk.0.attn_q.weight`: whole rows are permuted between rows (2 of 256 moved); with that undone
    the weight is equal to 'blk.0.attn_q.weight' of the first model
    """

    severity = Severity.ERROR
    help = "undo the permutation, or repeat the conversion without the step that makes it"
    since = "0.1"

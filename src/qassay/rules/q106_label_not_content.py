"""Q106."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Certainty, Finding, Severity
from qassay.core.text import safe
from qassay.rules.base import ContainerRule, ModelFacts
from qassay.rules.label_gguf import of_gguf


class LabelNotContent(ContainerRule, code="Q106", name="label-not-content"):
    """What the file says of its quantization is not what its tensors hold.

    ## What it does
    Reports configurations that contradict themselves or each other, and compares them with the
    tensors: the method with the layout (one that is not known is an info if such a method
    exists), integer or float codes, their width, the bits that a weight takes, layers that are
    said to be quantized and are floats, an index that is not in order where the configuration
    says that it is or that does not fill its groups, scales that are no powers of two where they
    are said to be. In NVFP4 a global scale is an error where the weights are impossible as it is
    read (above 1,000 or below 0.000001) and possible by its reciprocal, and a warning where they
    are wholly impossible either way (above 1,000,000 or below 1e-12); of compressed-tensors,
    one of exactly 1 is an info, and a warning if all scales below it are subnormal. Scales of a
    quantized KV cache that are exactly 1 are an info. In GGUF, `general.file_type`, or else the
    file's name, is compared with the types in the blocks: it is wrong if less than a third of the
    weights have the type that it means.

    Methods without a list of what they quantize leave some matrices alone as they see fit. Where
    no layer of a name is quantized, only names that every quantizer takes (`q_proj`,
    `down_proj`, ...) are a warning, the others an info.

    ## Why it is bad
    Programs believe the label: they refuse the file, or decode it as something else. A global
    scale taken for its reciprocal makes weights wrong by a factor of millions.

    ## How to fix it
    Correct the label, if the content is what was meant. Otherwise quantize again.

    ## Example
    `quantization_config.bits is 8, and 'model.layers.0.mlp.down_proj' and 6 other layers hold
    codes of 4 bits (gptq.int4)`
    """

    severity = Severity.WARNING
    help = "correct the label if the content is what was meant; otherwise quantize again"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield what configurations say against each other, then what tensors say against them."""
        yield from super().check(model)
        for said, label, most, share, count, first in of_gguf(model.container):
            yield self.finding(
                f"{said}, and {share:.0%} of the weights in {count:,} matrices are {most} (the"
                f" first that is no {label} is '{safe(first.name)}')",
                path=first.path,
                tensor=first.name,
                certainty=Certainty.LIKELY,
                data={"label": label, "most": most, "share": round(share, 4), "tensors": count},
            )
        if model.assembly is None:
            return
        # An audit without layers does not pay for this import.
        from qassay.rules.label_layers import of_layers  # noqa: PLC0415

        for label_ in of_layers(model):
            yield self.finding(
                label_.text,
                severity=label_.severity,
                certainty=label_.certainty,
                help=label_.help,
                **label_.about,
            )

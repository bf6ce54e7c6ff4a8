"""`--on sophgo:CHIP[@VERSION]`: the one word for a chip and a version of the compiler."""

from __future__ import annotations

from dataclasses import dataclass

from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.runtimes.sophgo.chips import CHIPS, NEWEST, Chip, chip_of, version_of


@dataclass(frozen=True, slots=True)
class Aimed:
    """What `--on` named.

    Attributes:
        chip: The chip; it has an A16MatMul.
        version: Of tpu-mlir, as given; the newest catalogued where none was.
    """

    chip: Chip
    version: str

    def __str__(self) -> str:
        return f"sophgo:{self.chip.id}@{self.version}"


def aimed_at(word: str) -> Aimed:
    """Return the chip and version that a word of `--on` names.

    Raises:
        UsageError: It names another runtime, no chip that is known, one without A16MatMul, or no
            version.
    """
    named, _, version = word.strip().partition("@")
    runtime, _, variant = named.partition(":")
    able = [chip.id for chip in CHIPS.values() if chip.has_a16matmul]
    if runtime.lower() != "sophgo" or not variant:
        raise UsageError(
            "--on: this command knows Sophgo's chips only",
            expected="sophgo:CHIP or sophgo:CHIP@VERSION",
            found=safe(word, 60),
            hint=f"chips are {', '.join(able)}",
        )
    chip = chip_of(variant)
    if not chip.has_a16matmul:
        raise UsageError(
            f"--on: {chip.id} has no A16MatMul: it takes no 4- or 8-bit weights with groups",
            expected=" or ".join(able),
            found=chip.id,
        )
    return Aimed(chip, version_of(version or None).text if version else NEWEST)

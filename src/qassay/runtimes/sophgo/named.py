"""`--on sophgo:CHIP[@VERSION]`: the one word for a chip and a version of the compiler."""

from __future__ import annotations

from dataclasses import dataclass

from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.runtimes.named import named
from qassay.runtimes.sophgo.chips import CHIPS, Chip, Version, chip_of, version_of


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


def chip_and_version(variant: str, version: str | None) -> tuple[Chip, Version]:
    """Return chip and version as `--on sophgo:VARIANT@VERSION` names them.

    Raises:
        UsageError: The chip is not known or missing, or the version is none.
    """
    if not variant:
        raise UsageError(
            "--on sophgo wants a chip", expected=f"sophgo:{' or sophgo:'.join(list(CHIPS)[:3])}"
        )
    return chip_of(variant), version_of(version)


def aimed_at(word: str) -> Aimed:
    """Return the chip and version that a word of `--on` names.

    Raises:
        UsageError: It names another runtime, no chip that is known, one without A16MatMul, or no
            version.
    """
    given = named(word)
    able = [chip.id for chip in CHIPS.values() if chip.has_a16matmul]
    if given.runtime != "sophgo":
        raise UsageError(
            "--on: this command knows Sophgo's chips only",
            expected="sophgo:CHIP or sophgo:CHIP@VERSION",
            found=safe(word, 60),
            hint=f"chips are {', '.join(able)}",
        )
    chip, version = chip_and_version(given.variant, given.version)
    if not chip.has_a16matmul:
        raise UsageError(
            f"--on: {chip.id} has no A16MatMul: it takes no 4- or 8-bit weights with groups",
            expected=" or ".join(able),
            found=chip.id,
        )
    return Aimed(chip, version.text)

"""What TPU-MLIR does with each Linear, for the catalog: facts of chip, version and checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qassay.core.errors import UsageError
from qassay.core.finding import Certainty
from qassay.core.text import safe
from qassay.runtimes.catalog.grammar import Catalog
from qassay.runtimes.fit_profile import Asked, Cap, Place, Profile, base_facts
from qassay.runtimes.shapes.linear import Linear, Shapes
from qassay.runtimes.sophgo.chips import (
    CHIPS,
    NEWEST,
    PER_CHANNEL_GROUP,
    Behaviour,
    Branch,
    behaviour,
    chip_of,
    version_of,
)
from qassay.runtimes.sophgo.named import chip_and_version
from qassay.runtimes.targets import DEFAULT_GROUP

MODES = {"w4bf16": (4, "bf16"), "w4f16": (4, "f16"), "w8bf16": (8, "bf16"), "w8f16": (8, "f16"),
         "bf16": (16, "bf16"), "f16": (16, "f16")}  # fmt: skip
"""Bits of a weight and type of the activations, by mode."""

READ = ("gptq", "awq", "auto-round", "auto_round", "intel/auto-round", "compressed-tensors",
        "compressed")  # fmt: skip
"""Methods that llm_convert has a reader for (1.30.2, python/llm/ModelHandle.py)."""

_KEPT = {
    "lm_head": "the converter compiles the head at 16 bits",
    "vision": "the converter compiles the vision tower at 16 bits",
    "mtp": "the converter leaves multi-token prediction out",
}
_HALVES = {"bfloat16": "bf16", "float16": "f16"}


class Sophgo(Profile):
    """TPU-MLIR by chip and version."""

    def mode_in(self, words: Iterable[str]) -> str | None:
        """Return the first word that is a mode."""
        return next((word for word in words if _plain(word) in MODES), None)

    def place(self, variant: str, version: str | None) -> Place:
        """Return chip and version.

        Raises:
            UsageError: The chip is not known or missing, or the version is none.
        """
        chip, known = chip_and_version(variant, version)
        return Place("sophgo", chip.id, known.text, known.note)

    def places(self) -> Iterator[Place]:
        """Yield every chip with an A16MatMul, under both versions that were run."""
        for chip in CHIPS.values():
            if chip.has_a16matmul:
                for version in self.catalog.versions:
                    yield self.place(chip.id, version)

    def ask(
        self, shapes: Shapes, place: Place, to: str | None, group_size: int | None, tp: int
    ) -> Asked:
        """Return mode and group size, from the checkpoint where it states them.

        Raises:
            UsageError: There is no such mode, or neither the command nor the checkpoint says what
                floats become.
        """
        mode, bits, half, notes = _mode(shapes, to)
        if shapes.container == "gguf":
            notes.append("shapes only: nothing is known of TPU-MLIR reading GGUF itself")
        group = shapes.group_size if shapes.quantized else None
        if group is None:
            group = DEFAULT_GROUP if group_size is None else group_size
        elif group_size is not None and group_size != group:
            notes.append(f"the checkpoint's group size {group} counts, not {group_size}")
        return Asked(place, mode, bits, half, -1 if group <= 0 else group, tp, tuple(notes))

    def settle(self, linear: Linear, shapes: Shapes, asked: Asked) -> str:
        """Return `codes`, `floats`, `again`, or why the Linear stays at 16 bits."""
        if linear.role in _KEPT:
            return _KEPT[linear.role]
        if linear.quantized:
            return "codes"
        if asked.bits == 16:
            return f"{asked.to} quantizes nothing"
        if not shapes.quantized:
            return "floats"
        if version_of(asked.place.version).acts_as == version_of(NEWEST).acts_as:
            return "the checkpoint keeps it at 16 bits"
        return "again"

    def unread(self, linear: Linear, how: str) -> str:
        """Return why nothing is known of a checkpoint's codes, "" where something is."""
        method = linear.method.lower()
        if how != "codes" or method in READ:
            return ""
        return f"it is not known whether TPU-MLIR's converter reads {safe(method or '?', 40)}"

    def facts(self, linear: Linear, shapes: Shapes, asked: Asked, how: str) -> dict[str, Any]:
        """Return what conditions ask about."""
        values: dict[str, Any] = dict(base_facts(linear, asked, how))
        bits, group = values["bits"], values["g"]
        per_row = None if group is None else 1 if group <= 0 else -(-linear.k // group)
        values |= {
            "G": per_row,
            "PG": PER_CHANNEL_GROUP,
            "half": asked.half,
            "zero_offset": 1 if linear.zero_offset is None else linear.zero_offset,
            "config_groups": shapes.config_groups,
            "has_a16matmul": chip_of(asked.place.variant).has_a16matmul,
            "requantized": how == "again",
        }
        known = self._behaviour(asked, bits, group)
        if known is not None:
            whole = self._behaviour(asked, bits, -1)
            values |= {
                "P": known.chip.lanes,
                "reordered": known.branch is not Branch.NONE,
                "regrouped": whole is not None and whole.branch is not Branch.NONE,
                "misfit": known.on_misfit.value,
                "u8_zeros_abort": known.aborts_when_prequantized,
            }
        return values

    def caps(self, linear: Linear, asked: Asked, how: str) -> Mapping[str, Cap]:
        """Return how certain layout and misfit are for chip and version."""
        bits = linear.bits if how == "codes" else asked.bits
        group = linear.group if how == "codes" else asked.group_size
        known = self._behaviour(asked, bits, group)
        if known is None:
            return {"": (Certainty.PROVEN, "")}
        notes = [known.version.note] if known.version.note else []
        certainty = known.version.certainty
        if asked.tp > 1:
            certainty = Certainty.LIKELY if certainty is Certainty.PROVEN else certainty
            notes.append("how --num_device splits a Linear was not run")
        misfit = known.misfit_certainty
        doubts = [known.note] if misfit is not Certainty.PROVEN else []
        if linear.role in ("gate", "router", "expert"):
            misfit = Certainty.LIKELY if misfit is Certainty.PROVEN else misfit
            doubts.append("experts and their gates were not run")
        return {"": (certainty, "; ".join(notes)), "misfit": (misfit, "; ".join(doubts))}

    def _behaviour(self, asked: Asked, bits: int | None, group: int | None) -> Behaviour | None:
        """Return what chip and version do, None where the chip or the width has no A16MatMul."""
        if bits not in (4, 8) or not chip_of(asked.place.variant).has_a16matmul:
            return None
        size = 64 if group is None else group
        return behaviour(
            asked.place.variant, asked.place.version, weight_bits=bits, q_group_size=size
        )


def _plain(word: str) -> str:
    return word.lower().removeprefix("sophgo.")


def _mode(shapes: Shapes, to: str | None) -> tuple[str, int, str, list[str]]:
    """Return the mode with its bits and half type, and what was not taken from the command."""
    widths = sorted({one.bits for one in shapes.linears if one.quantized and one.bits})
    said = "" if to is None else _plain(to)
    if to is not None and said not in MODES:
        raise UsageError(
            "--to names no mode of TPU-MLIR", expected=", ".join(MODES), found=safe(repr(to), 60)
        )
    if said:
        bits, half = MODES[said]
        if widths and bits not in widths:
            note = f"the checkpoint's codes have {' and '.join(map(str, widths))} bits; {said} does"
            return said, bits, half, [f"{note} not change them"]
        return said, bits, half, []
    if not shapes.linears:
        return "", 16, "", []  # nothing is left that a mode could be about
    if not shapes.quantized:
        raise UsageError(
            "nothing says what the floats shall become",
            expected=f"--to one of {', '.join(MODES)}",
            found="a model whose quantization, if any, TPU-MLIR does not take, and no such --to"
            if shapes.unread or shapes.container == "gguf"
            else "a model without quantization, and no such --to",
        )
    if not widths:
        return "bf16", 16, "", ["the checkpoint holds no codes that are understood"]
    awq = shapes.method.lower() == "awq"
    half = "f16" if awq else _HALVES.get(shapes.dtype, "")
    bits = widths[0]
    if bits not in (4, 8):
        return f"w{bits}{half}", bits, half, ["the mode is what the checkpoint states"]
    shown = f"w{bits}{half or 'bf16'}"
    why = "the mode is what the checkpoint states"
    return shown, bits, half, [why if half else f"{why}; its 16-bit type is not known"]


def profile(about: Catalog) -> Sophgo:
    """Return the profile of the catalog."""
    return Sophgo(about)

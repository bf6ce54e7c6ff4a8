"""What each chip does with an A16MatMul under each version of tpu-mlir, as data.

The number of lanes belongs to the chip; the layout and what happens to a Linear that does not
fit belong to chip *and* version. Two releases were run (1.28.1 and 1.30.2); whatever is said of
other versions, or was only read in the source, is `likely`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache

from qassay.core.errors import UsageError
from qassay.core.finding import Certainty
from qassay.core.text import safe
from qassay.runtimes.sophgo.packing import known_width

NEWEST = "1.30.2"
"""The version that is meant where none is named."""

PER_CHANNEL_GROUP = 128
"""What `A16MatMulToGroup` makes of a scale per channel: groups of 128, K/128 of them, cut off."""

SOURCES = (
    "tpu-mlir 1.28.1 (g43676b3) and 1.30.2 (gecc9dd6), the PyPI wheels, run",
    "tpu-mlir 1f6ac19, lib/Dialect/Tpu/Transforms/WeightReorder/BM1684X/A16MatMul.cpp,"
    " weight_reorder_A16MatMul",
    "tpu-mlir 05452d0, lib/Dialect/Tpu/Canonicalize/A16MatMul.cpp, A16MatMulToGroup",
    "sophgo/tpu-mlir issues 269 and 275",
)
"""Where the tables below come from."""


class Branch(Enum):
    """How the weight reorder lays out scale and zero point (see `layout`)."""

    NONE = "none"
    """Nothing is moved: scale and zero point stay `[N, 1]`."""
    PLAIN = "plain"
    """Scale and zero point apart, channels dealt to lanes."""
    INTERLEAVED = "interleaved"
    """Zero point and scale side by side, channels dealt to lanes."""
    INTERLEAVED_IN_ORDER = "interleaved-in-order"
    """Zero point and scale side by side, channels in their old order."""


class Misfit(Enum):
    """What the compiler does with a Linear whose N is no multiple of P."""

    ABORT = "abort"
    """`--weight-reorder` dies: `invalid scale channel`."""
    FALL_BACK = "fall-back"
    """The Linear silently becomes a 16-bit MatMul (pattern `A16MatMulToMatMul`)."""
    SPLIT = "split"
    """The largest part that fits stays W4, the rest becomes BF16, and both are concatenated."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip.

    Attributes:
        id: As `--chip` spells it.
        lanes: P (`Arch::NPU_NUM`); 0 where the chip has no A16MatMul.
        ran: Whether lanes and layout were seen in what the compiler wrote.
    """

    id: str
    lanes: int
    ran: bool = True

    @property
    def has_a16matmul(self) -> bool:
        """Whether the chip has the operation at all; lowering is UNREACHABLE where not."""
        return self.lanes > 0


CHIPS = {
    chip.id: chip
    for chip in (
        Chip("bm1684x", 64),
        Chip("bm1684x2", 16),
        Chip("bm1688", 32),
        Chip("bm1690", 64),
        Chip("cv184x", 8),
        Chip("cv186x", 32),
        Chip("sg2262", 64),
        Chip("sg2380", 32),
        Chip("sgtpuv8", 8),
        # TopToTpuPass.cpp:1829, "UNREACHABLE": read, not run.
        Chip("bm1684", 0, ran=False),
        Chip("cv180x", 0, ran=False),
        Chip("cv181x", 0, ran=False),
        Chip("cv182x", 0, ran=False),
        Chip("cv183x", 0, ran=False),
    )
}
"""Every chip that is known."""

_RAN = ((1, 28, 1), (1, 30, 2))
_BUILDS = {(1, 28, 1): "43676b3", (1, 30, 2): "ecc9dd6"}  # commits of the wheels that were run
_FIXED_DATE = 20260522  # beta g df2b86866: the abort is gone (issue 275)
_MISFIT_RAN = frozenset({"bm1684x", "bm1688"})  # abort and fall-back, both versions
_DQ2 = {
    # chips whose scales and zero points are interleaved, by version
    (1, 28, 1): frozenset({"cv184x", "sgtpuv8"}),
    (1, 30, 2): frozenset({"cv184x", "sgtpuv8", "bm1684x2"}),
}
_U8_ZERO_POINT_ABORTS = {
    # "ui8 not equal to Type": the reorder reads 16-bit zero points and a checkpoint has 8-bit ones
    (1, 28, 1): frozenset({"cv184x", "sgtpuv8", "sg2380"}),
    (1, 30, 2): frozenset({"sg2380"}),
}


@dataclass(frozen=True, slots=True)
class Version:
    """A version of tpu-mlir.

    Attributes:
        text: As it was given.
        acts_as: The version that was run and that it is taken to act like.
        certainty: `proven` for the two versions that were run.
        note: Why it is not proven, in words; empty where it is.
        older: Whether it is older than every version that was run.
    """

    text: str
    acts_as: tuple[int, int, int]
    certainty: Certainty
    note: str
    older: bool = False


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one version does with an A16MatMul on one chip.

    Attributes:
        chip: The chip.
        version: The version.
        branch: The layout of scale and zero point after the weight reorder.
        on_misfit: What happens where N is no multiple of the lanes.
        aborts_when_prequantized: Whether a checkpoint's own 8-bit zero points make the weight
            reorder abort ("ui8 not equal to Type"), whatever the shape.
        requantizes_kept_layers: Whether W4BF16 mode quantizes Linears again that the checkpoint
            kept at 16 bits.
        weight_may_move: Whether the packed weight itself can be permuted (SG2380, four cores,
            one row of input); qassay does not undo that.
        certainty: Of the layout: `proven` where chip and version were run.
        misfit_certainty: Of `on_misfit`.
        note: Why either is not proven; empty where both are.
    """

    chip: Chip
    version: Version
    branch: Branch
    on_misfit: Misfit
    aborts_when_prequantized: bool
    requantizes_kept_layers: bool
    weight_may_move: bool
    certainty: Certainty
    misfit_certainty: Certainty
    note: str

    def fits(self, n: int) -> bool:
        """Whether N output channels can be dealt to the lanes."""
        return self.branch is Branch.NONE or n % self.chip.lanes == 0

    def kept_of(self, n: int, *, cores: int = 1) -> int:
        """Return how many of N channels stay quantized: all, none, or the part before a split."""
        if self.fits(n):
            return n
        if self.on_misfit is Misfit.SPLIT:
            return n - n % (self.chip.lanes * cores) if n >= self.chip.lanes else 0
        return 0


def chip_of(name: str) -> Chip:
    """Return the chip called `name`, in any case.

    Raises:
        UsageError: It is not known; nothing is guessed about it.
    """
    chip = CHIPS.get(name.lower())
    if chip is None:
        raise UsageError(
            "no such Sophgo chip", expected=", ".join(CHIPS), found=repr(safe(name, 40))
        )
    return chip


_NUMBERS = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?")
_BETA = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.beta\b")
_REST = re.compile(r"(?:[.+_-]|(?:a|b|rc)\d)\S*|")
_DATE = re.compile(r"\b(20\d{6})\b")


@cache
def version_of(text: str | None) -> Version:
    """Return what is known about a version: `1.28.1`, `v1.28.beta.0-37-gdf2b86866-20260522`, None.

    None is the newest catalogued version. A version that was not run is taken to act like the
    nearest run one and never more than `likely`.

    Raises:
        UsageError: The text is no version.
    """
    shown = NEWEST if text is None else text.strip()
    found = _NUMBERS.match(shown)
    if found is None or not _REST.fullmatch(shown[found.end() :]):
        raise UsageError(
            "no version of tpu-mlir", expected="1.28.1, 1.30.2, ...", found=repr(safe(shown, 60))
        )
    numbers = (int(found[1]), int(found[2]), int(found[3] or 0))
    beta = _BETA.match(shown) is not None
    if numbers in _RAN and not beta:
        rest = shown[found.end() :]
        if not rest or rest.startswith(f"-g{_BUILDS[numbers]}"):
            return Version(shown, numbers, Certainty.PROVEN, "")
        plain = ".".join(map(str, numbers))
        note = f"another build than the {plain} that was run (g{_BUILDS[numbers]})"
        return Version(shown, numbers, Certainty.LIKELY, note)
    date = _DATE.search(shown)
    if beta and date and _RAN[0][:2] <= numbers[:2] and int(date[1]) >= _FIXED_DATE:
        return Version(
            shown, _RAN[1], Certainty.LIKELY, "betas from 2026-05-22 on no longer abort (issue 275)"
        )
    if numbers < _RAN[0] or (beta and numbers[:2] <= _RAN[0][:2]):
        note = "older than 1.28.1, the oldest version that was run"
        return Version(shown, _RAN[0], Certainty.LIKELY, note, older=numbers < (1, 28, 0))
    if numbers < _RAN[1]:
        note = "between 1.28.1, which aborts, and 1.30.2, which does not; neither was this version"
        return Version(
            shown, _RAN[0] if numbers[:2] == (1, 28) else _RAN[1], Certainty.LIKELY, note
        )
    return Version(shown, _RAN[1], Certainty.LIKELY, "newer than 1.30.2, the newest that was run")


def behaviour(
    chip: str, version: str | None = None, *, weight_bits: int = 4, q_group_size: int = 64
) -> Behaviour:
    """Return what a version does with an A16MatMul on a chip.

    Args:
        chip: As `--chip` spells it.
        version: Of tpu-mlir; None for the newest catalogued.
        weight_bits: 4 or 8.
        q_group_size: g. Zero or less means a scale per channel, which the compiler turns into
            groups of 128.

    Raises:
        UsageError: The chip is unknown or has no A16MatMul, or the version or width is unknown.
    """
    known_width(weight_bits)
    what = chip_of(chip)
    if not what.has_a16matmul:
        raise UsageError(
            f"{what.id} has no A16MatMul: lowering is UNREACHABLE (TopToTpuPass.cpp:1829)",
            expected=", ".join(one.id for one in CHIPS.values() if one.has_a16matmul),
            found=what.id,
        )
    which = version_of(version)
    branch, doubt = _branch(what.id, which.acts_as, weight_bits, q_group_size)
    misfit, misfit_certainty, misfit_doubt = _misfit(what.id, which)
    return Behaviour(
        chip=what,
        version=which,
        branch=branch,
        on_misfit=misfit,
        aborts_when_prequantized=what.id in _U8_ZERO_POINT_ABORTS[which.acts_as],
        requantizes_kept_layers=which.acts_as == _RAN[0],
        weight_may_move=what.id == "sg2380",
        certainty=Certainty.LIKELY if which.note or doubt else Certainty.PROVEN,
        misfit_certainty=misfit_certainty,
        note="; ".join(part for part in (which.note, doubt, misfit_doubt) if part),
    )


def _misfit(chip: str, version: Version) -> tuple[Misfit, Certainty, str]:
    """Return what happens where P does not divide N, how sure that is, and why not surer."""
    if version.older:
        why = "an older W4A16MatMulPreparePattern split such Linears; read, not run"
        return Misfit.SPLIT, Certainty.HINT, why
    misfit = Misfit.ABORT if version.acts_as == _RAN[0] else Misfit.FALL_BACK
    if chip in _MISFIT_RAN:
        return misfit, version.certainty, ""
    return misfit, Certainty.LIKELY, "N that does not fit was run on bm1684x and bm1688 only"


def _branch(
    chip: str, version: tuple[int, int, int], weight_bits: int, group: int
) -> tuple[Branch, str]:
    """Return the layout and, where it was read and not run, a word of doubt."""
    if chip == "sg2380":
        # its zero points are floats, so that A16MatMulToGroup leaves a scale per channel alone
        branch = Branch.INTERLEAVED if group > 0 else Branch.NONE
        return branch, "the layout of sg2380 was read, not run"
    if group <= 0:
        group = PER_CHANNEL_GROUP
    if chip not in _DQ2[version] or group < 32 or group % 32:
        return Branch.PLAIN, ""
    if version == _RAN[0] and weight_bits == 8:
        return Branch.PLAIN, "older source interleaves 4-bit layers only; 8 bits were not run"
    in_order = chip == "bm1684x2"
    return (Branch.INTERLEAVED_IN_ORDER if in_order else Branch.INTERLEAVED), ""

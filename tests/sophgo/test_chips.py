"""Chips and versions: what was run, what was read, and what nobody knows."""

from __future__ import annotations

import pytest

from qassay.core.errors import UsageError
from qassay.core.finding import Certainty
from qassay.runtimes.sophgo.chips import (
    CHIPS,
    Branch,
    Misfit,
    behaviour,
    version_of,
)

LANES = {
    "bm1684x": 64, "bm1688": 32, "cv186x": 32, "bm1690": 64, "sg2262": 64,
    "cv184x": 8, "sgtpuv8": 8, "sg2380": 32, "bm1684x2": 16,
}  # fmt: skip


def test_lanes() -> None:
    assert {one.id: one.lanes for one in CHIPS.values() if one.has_a16matmul} == LANES


@pytest.mark.parametrize(
    ("chip", "version", "bits", "group", "branch"),
    [
        ("BM1684X", "1.28.1", 4, 64, Branch.PLAIN),
        ("bm1684x", "1.30.2", 8, 64, Branch.PLAIN),
        ("cv184x", "1.30.2", 4, 64, Branch.INTERLEAVED),
        ("cv184x", "1.30.2", 8, 32, Branch.INTERLEAVED),
        ("cv184x", "1.30.2", 4, 16, Branch.PLAIN),
        ("cv184x", "1.30.2", 4, 48, Branch.PLAIN),
        ("cv184x", "1.30.2", 4, 0, Branch.INTERLEAVED),
        ("sgtpuv8", "1.28.1", 4, 64, Branch.INTERLEAVED),
        ("bm1684x2", "1.28.1", 4, 64, Branch.PLAIN),
        ("bm1684x2", "1.30.2", 4, 64, Branch.INTERLEAVED_IN_ORDER),
        ("sg2380", "1.30.2", 4, 16, Branch.INTERLEAVED),
        ("sg2380", "1.30.2", 4, 0, Branch.NONE),
    ],
)
def test_branches(chip: str, version: str, bits: int, group: int, branch: Branch) -> None:
    assert behaviour(chip, version, weight_bits=bits, q_group_size=group).branch is branch


def test_what_happens_to_a_linear_that_does_not_fit() -> None:
    old, new = behaviour("bm1684x", "1.28.1"), behaviour("bm1684x")
    assert (old.on_misfit, new.on_misfit) == (Misfit.ABORT, Misfit.FALL_BACK)
    assert old.requantizes_kept_layers
    assert not new.requantizes_kept_layers
    assert old.misfit_certainty is new.misfit_certainty is Certainty.PROVEN
    assert [n for n in (16, 32, 64, 96, 128, 192) if old.fits(n)] == [64, 128, 192]
    assert old.kept_of(96) == 0
    before = behaviour("bm1684x", "1.10")
    assert before.on_misfit is Misfit.SPLIT
    assert before.misfit_certainty is Certainty.HINT
    assert [before.kept_of(n) for n in (16, 64, 96, 200)] == [0, 64, 64, 192]
    assert before.kept_of(200, cores=2) == 128
    unseen = behaviour("bm1690", "1.30.2")
    assert unseen.certainty is Certainty.PROVEN
    assert unseen.misfit_certainty is Certainty.LIKELY
    assert "bm1684x and bm1688 only" in unseen.note


def test_zero_points_of_a_checkpoint() -> None:
    aborts = {
        version: [chip for chip in LANES if behaviour(chip, version).aborts_when_prequantized]
        for version in ("1.28.1", "1.30.2")
    }
    assert aborts == {"1.28.1": ["cv184x", "sgtpuv8", "sg2380"], "1.30.2": ["sg2380"]}


@pytest.mark.parametrize(
    ("text", "acts_as", "certainty"),
    [
        (None, (1, 30, 2), Certainty.PROVEN),
        ("1.30.2", (1, 30, 2), Certainty.PROVEN),
        ("v1.28.1-g43676b3-20260429", (1, 28, 1), Certainty.PROVEN),
        ("1.30.2-gecc9dd6", (1, 30, 2), Certainty.PROVEN),
        ("1.28.1-5-gdeadbee", (1, 28, 1), Certainty.LIKELY),
        ("1.30.2rc1", (1, 30, 2), Certainty.LIKELY),
        ("1.27", (1, 28, 1), Certainty.LIKELY),
        ("1.28.0", (1, 28, 1), Certainty.LIKELY),
        ("1.29.0", (1, 30, 2), Certainty.LIKELY),
        ("2.0", (1, 30, 2), Certainty.LIKELY),
        ("v1.28.beta.0-37-gdf2b86866-20260522", (1, 30, 2), Certainty.LIKELY),
        ("v1.28.beta.0-12-gabcdef0-20260301", (1, 28, 1), Certainty.LIKELY),
    ],
)
def test_versions(text: str | None, acts_as: tuple[int, int, int], certainty: Certainty) -> None:
    found = version_of(text)
    assert (found.acts_as, found.certainty) == (acts_as, certainty)
    assert bool(found.note) is (certainty is Certainty.LIKELY)


def test_nothing_is_guessed() -> None:
    for chip in ("bm9999", "", "bm1684x\x1b[2J"):
        with pytest.raises(UsageError, match="no such Sophgo chip"):
            behaviour(chip)
    with pytest.raises(UsageError, match="has no A16MatMul"):
        behaviour("cv181x")
    for version in ("latest", "", "x1.2", "1", "1.28.1xyz", "1.28.1 x", "1.28.1\x1b"):
        with pytest.raises(UsageError, match="no version"):
            behaviour("bm1684x", version)
    with pytest.raises(UsageError, match="weight_bits"):
        behaviour("bm1684x", weight_bits=2)

"""Each transformation, planted in a seeded matrix: named, with the right numbers; nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from qassay.comparison import weights as weights_module
from qassay.comparison.direct import Sides, differ
from qassay.comparison.engine import Known, compare_entries
from qassay.comparison.entries import Entries, Match
from qassay.comparison.facts import Pair
from qassay.comparison.forms import Form, form_of
from qassay.comparison.orders import AWQ_PACK, AWQ_READ, rotary, tiled
from qassay.comparison.search import Context
from qassay.encodings.layers.canonical import Canonical

ROWS, COLUMNS, GROUP = 192, 256, 32
GROUPS = COLUMNS // GROUP


@dataclass(frozen=True, eq=False)
class Held:
    """A weight held in memory, in canonical form."""

    canonical: Canonical
    name: str = "w"
    path: str = "memory"
    label: str = "gptq.int4"
    bits: int = 4
    nbytes: int = 0
    whole: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.canonical.shape

    def form(self, start: int, stop: int, *, local: bool) -> Form:
        del local  # nothing is kept apart here
        whole = self.canonical
        part = lambda values: None if values is None else values[start:stop]  # noqa: E731
        rows = replace(
            whole,
            codes=whole.codes[start:stop],
            scales=part(whole.scales),
            zeros=part(whole.zeros),
            minimums=part(whole.minimums),
        )
        return form_of(rows, self.bits)


def random(seed: int = 0, *, table: bool = False, rows: int = ROWS) -> Canonical:
    rng = np.random.default_rng(seed)
    shape = (rows, GROUPS)
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return Canonical(
        codes=rng.integers(0, 16, (rows, COLUMNS)).astype(np.uint8),
        scales=rng.uniform(0.001, 0.01, shape).astype(np.float16).astype(np.float32),
        groups=np.arange(COLUMNS, dtype=np.int32) // GROUP,
        zeros=None if table else rng.integers(0, 16, shape).astype(np.int16),
        table=np.concatenate([e2m1, -e2m1]) if table else None,
    )


def compared(a: Canonical, b: Canonical, name: str = "w", **context: Any) -> Pair:
    entries = Entries(by_name={name: Held(a)})
    return compare_entries(Match(name, Held(a), Held(b), name), Context(**context), Known(entries))


def rows_of(c: Canonical, order: np.ndarray, *parts: str) -> Canonical:
    names = parts or ("codes", "scales", "zeros")
    return replace(c, **{name: getattr(c, name)[order] for name in names})


def columns_of(c: Canonical, order: np.ndarray) -> Canonical:
    return replace(c, codes=c.codes[:, order])


RNG = np.random.default_rng(99)
ROW_ORDER = RNG.permutation(ROWS)
COLUMN_ORDER = RNG.permutation(COLUMNS)
SWAP = np.arange(ROWS)
SWAP[[5, 77]] = [77, 5]
MOVED = int((np.arange(COLUMNS) // GROUP != COLUMN_ORDER // GROUP).sum())
GROUP_ORDER = np.array([1, 0, 3, 2, 5, 4, 7, 6])
MISSING, EXTRA = tiled(AWQ_READ, ROWS), tiled(AWQ_PACK, ROWS)

Plant = Callable[[Canonical], Canonical]
PLANTED: dict[str, tuple[Plant, list[tuple[str, str, set[str], dict[str, Any]]]]] = {
    "zeros one lower": (
        lambda c: replace(c, zeros=((c.zeros - 1) & 15).astype(np.int16)),
        [("zero-points-shifted", "Q605", {"zeros"}, {"shift": -1, "modulus": 16})],
    ),
    "zeros three higher": (
        lambda c: replace(c, zeros=((c.zeros + 3) & 15).astype(np.int16)),
        [("zero-points-shifted", "Q605", {"zeros"}, {"shift": 3})],
    ),
    "codes as two's complement": (
        lambda c: replace(c, codes=c.codes ^ 8),
        [("codes-shifted", "Q605", {"codes"}, {"shift": 8})],
    ),
    "nibbles swapped": (
        lambda c: columns_of(c, np.arange(COLUMNS) ^ 1),
        [("nibbles-swapped", "Q606", {"codes"}, {"axis": "columns"})],
    ),
    "nibbles of ggml blocks swapped": (
        lambda c: columns_of(c, np.arange(COLUMNS) ^ 16),
        [("nibbles-swapped", "Q606", {"codes"}, {"axis": "columns"})],
    ),
    "words reversed": (
        lambda c: columns_of(c, np.arange(COLUMNS) ^ 7),
        [("nibble-order", "Q606", {"codes"}, {"axis": "columns"})],
    ),
    "AWQ order missing in codes": (
        lambda c: rows_of(c, MISSING, "codes"),
        [("awq-order-missing", "Q606", {"codes"}, {"axis": "rows"})],
    ),
    "AWQ order missing in zeros": (
        lambda c: rows_of(c, MISSING, "zeros"),
        [("awq-order-missing", "Q606", {"zeros"}, {})],
    ),
    "AWQ order missing in both": (
        lambda c: rows_of(c, MISSING, "codes", "zeros"),
        [("awq-order-missing", "Q606", {"codes", "zeros"}, {})],
    ),
    "AWQ order twice": (
        lambda c: rows_of(c, EXTRA, "codes"),
        [("awq-order-extra", "Q606", {"codes"}, {})],
    ),
    "scales rolled": (
        lambda c: replace(c, scales=np.roll(c.scales, 1, axis=1)),
        [("groups-rolled", "Q604", {"scales"}, {"groups": 1, "of": GROUPS})],
    ),
    "scales and zeros rolled back by two": (
        lambda c: replace(c, scales=np.roll(c.scales, -2, 1), zeros=np.roll(c.zeros, -2, 1)),
        [("groups-rolled", "Q604", {"scales", "zeros"}, {"groups": -2})],
    ),
    "groups permuted": (
        lambda c: replace(c, scales=c.scales[:, GROUP_ORDER]),
        [("groups-permuted", "Q604", {"scales"}, {"order": GROUP_ORDER.tolist()})],
    ),
    "scales read as [G, N]": (
        lambda c: replace(
            c, scales=np.ascontiguousarray(c.scales.T).reshape(ROWS, GROUPS)
        ),
        [("scales-transposed", "Q604", {"scales"}, {"rows": ROWS, "groups": GROUPS})],
    ),
    "scales of other rows": (
        lambda c: rows_of(c, SWAP, "scales"),
        [("rows-permuted", "Q604", {"scales"}, {"swapped": [5, 77], "moved": 2})],
    ),
    "two rows swapped": (
        lambda c: rows_of(c, SWAP),
        [("rows-permuted", "Q603", set(), {"swapped": [5, 77], "moved": 2})],
    ),
    "rows permuted": (
        lambda c: rows_of(c, ROW_ORDER),
        [("rows-permuted", "Q603", set(), {"order_begins": ROW_ORDER[:32].tolist()})],
    ),
    "rows rolled": (
        lambda c: rows_of(c, (np.arange(ROWS) + 3) % ROWS),
        [("rows-permuted", "Q603", set(), {"rolled": 3})],
    ),
    "codes of other columns": (
        lambda c: columns_of(c, COLUMN_ORDER),
        [("columns-permuted", "Q603", {"codes"},
          {"order_begins": COLUMN_ORDER[:32].tolist(), "axis": "columns"})],
    ),
    "columns with their scales": (
        lambda c: replace(
            c, codes=c.codes[:, COLUMN_ORDER], groups=c.groups[COLUMN_ORDER]
        ),
        [("columns-permuted", "Q603", set(), {"order_begins": COLUMN_ORDER[:32].tolist()})],
    ),
    "g_idx shuffled": (
        lambda c: replace(c, groups=c.groups[COLUMN_ORDER]),
        [("columns-in-other-groups", "Q604", {"groups"},
          {"shuffled": True, "columns": MOVED})],
    ),
    "scales doubled": (
        lambda c: replace(c, scales=c.scales * np.float32(2)),
        [("scales-multiplied", "Q613", {"scales"}, {"factor": 2.0})],
    ),
    "scales times seven": (
        lambda c: replace(c, scales=c.scales * np.float32(7)),
        [("scales-multiplied", "Q613", {"scales"}, {"factor": 7.0})],
    ),
    "all scales negative": (
        lambda c: replace(c, scales=-c.scales),
        [("scales-multiplied", "Q613", {"scales"}, {"factor": -1.0})],
    ),
    "zeros shifted and scales doubled": (
        lambda c: replace(c, zeros=((c.zeros + 1) & 15).astype(np.int16), scales=c.scales * 2),
        [("zero-points-shifted", "Q605", {"zeros"}, {"shift": 1}),
         ("scales-multiplied", "Q613", {"scales"}, {"factor": 2.0})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("small", [False, True], ids=["one_slab", "small_slabs"])
@pytest.mark.parametrize("name", PLANTED)
def test_planted(name, small, monkeypatch):
    if small:
        monkeypatch.setattr(weights_module, "SLAB", 24 * COLUMNS)
    plant, expected = PLANTED[name]
    a = random()
    pair = compared(a, plant(a))
    assert pair.relation == "equal-up-to", pair.difference
    told = {each.kind: each for each in pair.transformations}
    assert set(told) == {kind for kind, *_ in expected}
    for kind, code, parts, data in expected:
        each = told[kind]
        assert (each.code, set(each.parts)) == (code, parts)
        assert {key: each.data.get(key) for key in data} == data
    assert pair.difference.weights.different > 0


@pytest.mark.parametrize("name", PLANTED)
def test_planted_with_one_code_more_is_only_different(name):
    """What does not hold for every row is not claimed."""
    a = random()
    b = PLANTED[name][0](a)
    codes = b.codes.copy()
    codes[-1, -1] ^= 5
    pair = compared(a, replace(b, codes=codes))
    assert (pair.relation, pair.transformations) == ("different", ())
    assert not pair.other


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("table", [False, True])
def test_another_quantization_is_different(seed, table):
    pair = compared(random(seed, table=table), random(seed + 100, table=table))
    assert (pair.relation, pair.transformations) == ("different", ())
    told = pair.difference
    assert told.parts["codes"].different == sum(told.parts["codes"].steps)
    assert told.rows.different == ROWS


def test_nearly_the_same_quantization_is_counted_by_steps():
    a = random()
    rng = np.random.default_rng(3)
    moved = np.clip(a.codes.astype(int) + rng.integers(-1, 2, a.codes.shape), 0, 15)
    b = replace(a, codes=moved.astype(np.uint8))
    pair = compared(a, b)
    changed = int((moved != a.codes).sum())
    told = pair.difference
    assert (pair.relation, told.parts["codes"].steps) == ("different", [changed, 0, 0])
    assert told.largest == pytest.approx(1, rel=1e-5)
    assert told.weights.different == changed
    row, column = (int(at[0]) for at in np.nonzero(moved != a.codes))
    assert (told.first["row"], told.first["column"], told.first["part"]) == (row, column, "codes")


def test_signs_of_scales_with_mirrored_codes_change_nothing():
    a = replace(random(), zeros=np.full((ROWS, GROUPS), 8, np.int16))
    a = replace(a, codes=np.maximum(a.codes, 1))
    flip = np.random.default_rng(4).random((ROWS, GROUPS)) < 0.5
    spread = np.repeat(flip, GROUP, axis=1)
    b = replace(
        a,
        codes=np.where(spread, 16 - a.codes, a.codes).astype(np.uint8),
        scales=np.where(flip, -a.scales, a.scales),
    )
    pair = compared(a, b)
    assert [each.kind for each in pair.transformations] == ["scale-signs-flipped"]
    assert (pair.relation, pair.transformations[0].code) == ("equal-up-to", "")
    assert pair.difference.weights.different == 0


def test_codes_and_zero_points_moved_together_change_nothing():
    a = random()
    a = replace(a, codes=np.minimum(a.codes, 14), zeros=np.minimum(a.zeros, 14))
    b = replace(a, codes=a.codes + 1, zeros=(a.zeros + 1).astype(np.int16))
    pair = compared(a, b)
    assert [each.kind for each in pair.transformations] == ["codes-and-zeros-shifted"]
    assert pair.transformations[0].code == ""


def test_nan_on_both_sides_is_equal_and_on_one_side_different():
    a = random()
    scales = a.scales.copy()
    scales[7, 3] = np.nan
    with_nan = replace(a, scales=scales)
    assert compared(with_nan, with_nan).relation == "equal"
    other = scales.copy()
    other.view(np.uint32)[7, 3] = 0xFFC01234
    assert compared(with_nan, replace(a, scales=other)).relation == "equal"
    for one, two in ((a, with_nan), (with_nan, a)):
        pair = compared(one, two)
        assert (pair.relation, pair.transformations) == ("different", ())
        assert pair.difference.one_sided == GROUP
        assert pair.difference.first["row"] == 7
        assert pair.difference.first["column"] == 3 * GROUP


def test_nan_does_not_hide_a_transformation():
    a = random()
    scales = a.scales.copy()
    scales[7, 3] = np.nan
    a = replace(a, scales=scales)
    pair = compared(a, replace(a, scales=scales * 2))
    assert [each.data["factor"] for each in pair.transformations] == [2.0]


@pytest.mark.parametrize("heads", [2, 3, 6])
def test_rotary_rows_between_formats_are_no_fault_and_inside_one_are(heads):
    a = random()
    b = rows_of(a, rotary(ROWS, heads))
    pair = compared(a, b, "q_proj", converted=True, heads=(heads,))
    [told] = pair.transformations
    assert (told.kind, told.code, told.data) == ("rotary-rows", "", {"heads": heads})
    back = compared(b, a, "q_proj", converted=True, heads=(heads,))
    assert [each.code for each in back.transformations] == [""]
    inside = compared(a, b, "q_proj", heads=(heads,))
    assert [each.code for each in inside.transformations] == ["Q603"]


def test_rotary_is_what_the_converter_does():
    """Of two heads of four rows: both halves of each in turn."""
    assert rotary(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert rotary(8, 3) is None
    assert rotary(8, 0) is None


def test_weights_of_another_tensor():
    a, other = random(1), random(2)
    known = Known(Entries(by_name={"a": Held(a), "b": Held(other)}))
    pair = compare_entries(Match("a", Held(a), Held(other), "a"), Context(), known)
    assert (pair.relation, pair.other) == ("different", "b")


def test_other_bits_compare_by_decoded_weights():
    a = random()
    wide = Held(replace(a, codes=a.codes * 16, zeros=(a.zeros * 16).astype(np.int16),
                        scales=a.scales / 16), bits=8, label="gptq.int8")  # fmt: skip
    match = Match("w", Held(a), wide, "w")
    pair = compare_entries(match, Context(), Known(Entries()))
    assert (pair.relation, pair.difference.comparable) == ("equal", False)
    assert any("encodings differ" in note for note in pair.notes)
    other = replace(wide, canonical=random(9))
    pair = compare_entries(replace(match, b=other), Context(), Known(Entries()))
    assert pair.relation == "different"


def test_doubled_table_is_the_same_table():
    """ggml keeps E2M1 doubled and its scales halved."""
    a = random(table=True)
    b = replace(a, table=a.table * 2, scales=a.scales / 2)
    assert compared(a, b).relation == compared(b, a).relation == "equal"
    pair = compared(a, replace(b, scales=a.scales))
    assert [each.data["factor"] for each in pair.transformations] == [2.0]


def test_zero_points_and_minimums_are_two_spellings():
    a = random()
    minimums = 0 - a.zeros.astype(np.float32) * a.scales
    b = replace(a, zeros=None, minimums=minimums)
    assert compared(a, b).relation == compared(b, a).relation == "equal"


def test_slabs_cover_every_row(monkeypatch):
    monkeypatch.setattr(weights_module, "SLAB", 10 * COLUMNS)
    pieces = weights_module.slabs(Held(random()))
    assert pieces[0] == (0, 10)
    assert pieces[-1][1] == ROWS
    assert all(one[1] == two[0] for one, two in pairwise(pieces))
    a = random()
    difference = differ(Sides.of(Held(a), Held(random(1))))
    assert difference.weights.of == ROWS * COLUMNS

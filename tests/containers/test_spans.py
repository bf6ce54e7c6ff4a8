"""Spans against a brute-force oracle that marks every byte with its owners."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qassay.containers import MmapSource
from qassay.containers.defects import DefectLog
from qassay.containers.spans import Layout, Span, check_spans

SIZE = 64


@pytest.fixture
def source(tmp_path: Path) -> MmapSource:
    path = tmp_path / "x"
    path.write_bytes(b"\1" * SIZE)
    return MmapSource(path, "x")


def judge(source: MmapSource, spans: list[Span], alignment: int, first: int = 8) -> DefectLog:
    log = DefectLog("x")
    check_spans(spans, Layout(source, first, alignment), log)
    return log


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    ranges=st.lists(st.tuples(st.integers(8, SIZE + 8), st.integers(0, 40)), max_size=6),
    alignment=st.sampled_from([1, 8]),
)
def test_every_byte_has_one_owner_or_a_defect(
    source: MmapSource, ranges: list[tuple[int, int]], alignment: int
) -> None:
    spans = [Span(f"t{i}", start, start + length) for i, (start, length) in enumerate(ranges)]
    owners = [0] * SIZE
    for start, length in ranges:
        for byte in range(start, min(SIZE, start + length)):
            owners[byte] += 1
    found = {defect.code for defect in judge(source, spans, alignment).finish()}
    # The file is filled with ones: padding, too, belongs to nobody and says so.
    assert ("Q008" in found) is (0 in owners[8:])
    assert ("Q002" in found) is any(count > 1 for count in owners)


@given(cut=st.integers(9, SIZE - 1))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_said_about_bytes_after_an_unknown_size(source: MmapSource, cut: int) -> None:
    unknown = [Span("a", 8, None), Span("b", cut, SIZE)]
    assert judge(source, unknown, 1).finish() == []
    assert judge(source, [Span("a", 8, cut), Span("b", cut, None)], 1).finish() == []
    before = judge(source, [Span("a", 8, cut), Span("b", cut + 1, None)], 1).finish()
    assert [d.code for d in before] == ["Q008"]
    inside = judge(source, [Span("a", 8, SIZE), Span("b", cut, None)], 1).finish()
    assert [d.code for d in inside] == ["Q002"]


def test_an_unusable_shape_is_not_judged_again(source: MmapSource) -> None:
    spans = [Span("a", 8, 40), Span("b", 20, None, broken=True), Span("c", 40, SIZE)]
    assert judge(source, spans, 1).finish() == []


def test_gaps_can_be_left_out(source: MmapSource) -> None:
    log = DefectLog("x")
    check_spans([Span("a", 20, 30)], Layout(source, 8), log, gaps=False)
    assert log.finish() == []

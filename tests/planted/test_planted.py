"""Every planted fault is reported at its place, nothing else is, and sound twins give nothing."""

from __future__ import annotations

from collections import Counter, defaultdict

import gguf
import pytest

from qassay.core.finding import Severity
from qassay.run.check import check
from qassay.run.options import CheckOptions
from qassay.testing.planted import build_planted

WAYS = {
    "one_thread": ("reference", CheckOptions(jobs=1)),
    "two_threads_small_chunks": ("reference", CheckOptions(jobs=2, chunk_bytes=1000)),
    "seven_threads_tiny_chunks": ("reference", CheckOptions(jobs=7, chunk_bytes=1)),
    "fast": ("fast", CheckOptions(jobs=2)),
    "fast_tiny_chunks": ("fast", CheckOptions(jobs=7, chunk_bytes=300)),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return build_planted(tmp_path_factory.mktemp("planted"))


def place(fault, location):
    """What a fault states of its place, as (expected, found)."""
    wanted = {
        part: getattr(fault, part)
        for part in ("row", "column", "block", "byte_offset")
        if getattr(fault, part) is not None
    }
    found = {part: getattr(location, part) for part in wanted} if location else {}
    return wanted, found


def by_key(faults):
    grouped = defaultdict(list)
    for fault in faults:
        grouped[fault.code, fault.tensor, fault.expert, fault.field].append(fault)
    return grouped


@pytest.mark.parametrize("way", WAYS)
def test_every_fault_is_reported_and_nothing_else(planted, way, monkeypatch):
    kernels, options = WAYS[way]
    monkeypatch.setenv("QASSAY_KERNELS", kernels)
    for pair in planted.pairs:
        result = check(pair.broken, options)
        assert not result.facts.crashed, pair.name
        expected = by_key(pair.faults)
        found = defaultdict(list)
        for finding in result.findings:
            found[finding.code, finding.tensor, finding.expert, finding.field].append(finding)
        ignored = {key for key in found if key[0] == "Q901"} - set(expected)
        assert set(found) - ignored == set(expected), pair.name
        for key, faults in expected.items():
            assert len(found[key]) == 1, (pair.name, key)
            finding = found[key][0]
            assert {finding.severity} == {fault.severity for fault in faults}, (pair.name, key)
            assert finding.count == len(faults), (pair.name, key)
            ordered = sorted(faults, key=lambda fault: fault.byte_offset or 0)
            locations = finding.locations or (None,)
            assert len(locations) == len(ordered), (pair.name, key)
            for fault, location in zip(ordered, locations, strict=True):
                wanted, seen = place(fault, location)
                assert seen == wanted, (pair.name, key)


@pytest.mark.parametrize("way", WAYS)
def test_sound_twins_give_nothing(planted, way, monkeypatch):
    kernels, options = WAYS[way]
    monkeypatch.setenv("QASSAY_KERNELS", kernels)
    for clean in {pair.clean for pair in planted.pairs}:
        result = check(clean, options)
        assert result.complete, clean.name
        assert [f.message for f in result.findings] == [], clean.name


def test_enough_is_planted(planted):
    contents = [f for pair in planted.pairs[:2] for f in pair.faults]
    assert len(planted.faults) >= 40
    assert len({fault.tensor for fault in contents}) >= 12
    codes = Counter(fault.code for fault in planted.faults)
    assert set(codes) >= {
        *("Q001", "Q002", "Q003", "Q004", "Q005", "Q006", "Q007", "Q008", "Q110"),
        *("Q201", "Q202", "Q205", "Q301", "Q302", "Q303", "Q401", "Q402"),
    }
    assert any(fault.severity is Severity.INFO for fault in planted.faults)


def test_places_agree_with_another_reader(planted):
    """`gguf` by other people finds the tensors, and the faulty bytes, where we say they are."""
    pair = planted.pairs[0]
    clean, broken = pair.clean.read_bytes(), pair.broken.read_bytes()
    starts = {t.name: int(t.data_offset) for t in gguf.GGUFReader(pair.clean).tensors}
    for tensor in gguf.GGUFReader(pair.broken).tensors:
        assert starts[tensor.name] == int(tensor.data_offset)
        _, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
        for fault in pair.faults:
            if fault.tensor != tensor.name or fault.byte_offset is None:
                continue
            inside = fault.byte_offset - starts[tensor.name]
            assert 0 <= inside < tensor.n_bytes
            if fault.block is not None:
                assert inside // size == fault.block
            assert clean[fault.byte_offset :][:32] != broken[fault.byte_offset :][:32]

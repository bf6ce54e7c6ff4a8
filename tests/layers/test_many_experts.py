"""Experts without number in a small file cost no time each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.run.check import check
from qassay.run.options import CheckOptions
from qassay.testing.safetensors_writer import write_safetensors

MANY = 1 << 15


def _mxfp4(path: Path, experts: int) -> Path:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, experts * 32, np.uint8)
    scales = np.full(experts * 2, 120, np.uint8)
    scales[-1] = 255
    path.write_bytes(
        write_safetensors(
            [
                ("a_blocks", "U8", [experts, 2, 1, 16], codes.tobytes()),
                ("a_scales", "U8", [experts, 2, 1], scales.tobytes()),
            ]
        )
    )
    return path


@pytest.mark.parametrize("experts", [3, MANY])
def test_rows_with_scales_of_their_own_are_read_across_experts(
    experts: int, tmp_path: Path
) -> None:
    path = _mxfp4(tmp_path / "a.safetensors", experts)
    reports = [check(path, CheckOptions(chunk_bytes=size)) for size in (1 << 24, 1 << 12)]
    [found] = [each for each in reports[0].findings if each.code == "Q201"]
    assert found.location is not None
    assert found.location.byte_offset == path.stat().st_size - 1
    assert str(reports[0].findings) == str(reports[1].findings)  # NaN is not itself


def test_too_many_matrices_with_one_scale_each_are_not_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(
        write_safetensors(
            [
                ("a.weight", "F8_E4M3", [MANY, 1, 2], bytes(MANY * 2)),
                ("a.weight_scale", "F32", [MANY], bytes(MANY * 4)),
            ]
        )
    )
    skipped = qassay.check(path).to_dict()["coverage"]["skipped"]
    reasons = {each["reason"] for each in skipped}
    assert reasons == {"its 32,768 experts are too many to be read one by one"}

"""The tables of two write-ups come out of documented commands, to the last printed digit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "published_results.md").read_text("utf-8")

EXPERIMENT = (
    "qassay scales --published --codes stored --round c-cast"
    " --store f16-truncated --store 2-decimals --store integer"
)
ENGINE = "qassay scales --published --round c-cast --store f16 --store f16-truncated"
CORRECT = "qassay scales --published --store f16"


def documented(command: str) -> str:
    """Run a command that the page shows, and return what it prints."""
    assert command in PAGE.splitlines(), f"not documented: {command}"
    words = command.split()
    start = {"qassay": [sys.executable, "-m", "qassay"], "python": [sys.executable]}[words[0]]
    done = subprocess.run(
        [*start, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def row(printed: str, name: str) -> list[str]:
    """Return the cells of a row: bits, d, max error, in steps, ..."""
    [line] = [line for line in printed.splitlines() if line.split()[:1] == [name]]
    return line.split()[1:]


def agrees(cell: str, digits: str) -> bool:
    return f"{float(cell):.{len(digits.partition('.')[2])}f}" == digits


@pytest.mark.parametrize(
    ("name", "d", "error"),
    [
        ("f16-truncated", "0.023438", "0.03325"),
        ("2-decimals", "0.020000", "0.43830"),
        ("integer", "0.000000", "2.97830"),
    ],
)
def test_the_published_experiment(name: str, d: str, error: str) -> None:
    cells = row(documented(EXPERIMENT), name)
    assert cells[1:3] == [d, error]


def test_the_published_experiment_in_words() -> None:
    printed = documented(EXPERIMENT)
    assert row(printed, "f16-truncated")[3] == "1.42"
    times = float(row(printed, "2-decimals")[2]) / float(row(printed, "f16-truncated")[2])
    assert round(times) == 13
    assert row(printed, "integer")[7] == "1"  # the block is lost
    assert "amax    2.9782991" in printed


@pytest.mark.parametrize(
    ("command", "name", "error", "steps"),
    [
        (CORRECT, "f16", "0.0115", "0.49"),
        (ENGINE, "f16", "0.03492", "1.49"),
        (ENGINE, "f16-truncated", "0.03660", "1.56"),
        (EXPERIMENT, "f16-truncated", "0.03325", "1.42"),
    ],
)
def test_how_the_block_is_quantized(command: str, name: str, error: str, steps: str) -> None:
    cells = row(documented(command), name)
    assert agrees(cells[2], error)
    assert cells[3] == steps


def test_the_two_scales_and_half_a_step() -> None:
    printed = documented(CORRECT)
    [stored] = re.findall(r"^  stored  (\S+)$", printed, re.M)
    [scale] = re.findall(r"^  scale   (\S+) \(amax / 127\)$", printed, re.M)
    assert agrees(stored, "0.0234528")
    assert agrees(str(float(scale) / 2), "0.0117")
    truncated = documented(EXPERIMENT)
    assert re.findall(r"^  stored  (\S+)$", truncated, re.M) == ["0.0234375"]


Q8_0_ROWS = """\
plain
  in       -0.5, -0.46774194, -0.43548387
  block 0  -0.49996948, -0.46847534, -0.4369812
  block 1  -0.49996948, -0.46847534
  check    ok

NaN at [1]
  in       -0.5, NaN, -0.43548387
  block 0  -0.49996948, 0.0, -0.4369812
  block 1  -0.49996948, -0.46847534
  check    block 0: element 1 is NaN

inf at [1]
  in       -0.5, inf, -0.43548387
  block 0  NaN, NaN, NaN
  block 1  -0.49996948, -0.46847534
  check    block 0: element 1 is inf

block x 1e-5
  in       -5e-6, -4.6774194e-6, -4.3548384e-6
  block 0  -7.56979e-6, -7.0929527e-6, -6.6161156e-6
  block 1  -0.49996948, -0.46847534
  check    block 0: amax 5e-6, scale 3.937008e-8 is stored as 5.9604645e-8 in f16

block x 4e-6
  in       -2e-6, -1.8709677e-6, -1.7419355e-6
  block 0  -0.0, -0.0, -0.0
  block 1  -0.49996948, -0.46847534
  check    block 0: amax 2e-6, scale 1.5748032e-8 is stored as 0e0 in f16

block x 2e7
  in       -1e7, -9354839, -8709677
  block 0  -inf, -inf, -inf
  block 1  -0.49996948, -0.46847534
  check    block 0: amax 1e7 overflows the f16 scale
"""


@pytest.mark.parametrize("engine", ["candle", "ggml"])
def test_the_six_rows_of_q8_0(engine: str) -> None:
    printed = documented(f"python examples/candle_q8_0.py {engine}")
    title, _, rows = printed.partition("\n\n")
    assert title.startswith(f"Q8_0 by {engine}")
    assert rows == Q8_0_ROWS


def test_the_nan_that_disappears() -> None:
    printed = documented("python examples/nan_disappears.py").splitlines()
    values = {line[:22].strip(): line[22:].split() for line in printed[:4]}
    assert all(re.fullmatch(r"-?\d+\.\d{5}", value) for value in values["candle:cpu"])
    assert len(values["candle:cpu"]) == 4
    for path in ("candle:metal", "candle:dequantize-all", "float32 weights"):
        assert values[path] == ["nan"] * 4
    assert "candle:cpu took the NaN for a zero: True" in printed
    assert "so look before quantizing: block 4: element 5 is NaN" in printed


def test_the_rounding_is_found_from_data_alone() -> None:
    printed = documented("python examples/rounding_from_data.py").splitlines()
    assert [line for line in printed if "file a" in line and "no bias" in line].__len__() == 2
    found = "error above half a step; biased on negatives only"
    assert sum(found in line for line in printed) == 4
    assert not any(found in line for line in printed if "file a" in line)

"""Every command and every Python example in README and docs runs as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SETUP = "python3 -m venv"


def blocks(language: str) -> list[tuple[str, str]]:
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.M | re.S)
    return [(page.name, body) for page in PAGES for body in fence.findall(page.read_text())]


COMMANDS = [
    (page, line)
    for page, body in blocks("sh")
    for line in body.splitlines()
    if line.strip() and not line.startswith(SETUP)
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 8
    setups = [line for _, body in blocks("sh") for line in body.splitlines() if SETUP in line]
    runner = (ROOT / ".ci" / "run").read_text()
    assert len(set(setups)) == 2
    assert "README.md" in runner  # which runs those two as written


BENCHMARKS = [line for _, line in COMMANDS if line.split()[1].startswith("bench/")]


@pytest.mark.parametrize(("page", "line"), [pair for pair in COMMANDS if pair[1] not in BENCHMARKS])
def test_command_runs(page: str, line: str) -> None:
    words = line.split()
    start = {"qassay": [sys.executable, "-m", "qassay"], "python": [sys.executable]}[words[0]]
    done = subprocess.run(
        [*start, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_benchmarks_named_in_the_docs_are_run_by_ci() -> None:
    runner = (ROOT / ".ci" / "run").read_text()
    assert BENCHMARKS
    for line in BENCHMARKS:
        assert line.removeprefix("python ") in runner


def test_readme_python_runs() -> None:
    [example] = [body for page, body in blocks("python") if page == "README.md"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(16, 1536) ggml.q4_k\n"


@pytest.mark.parametrize(
    "example", [body for page, body in blocks("python") if page == "python.md"]
)
def test_examples_of_the_python_page_run(example: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_readme_report_is_what_is_printed() -> None:
    [shown] = [body for page, body in blocks("console") if page == "README.md"]
    command, *lines = shown.splitlines()
    done = subprocess.run(
        [sys.executable, "-m", *command.removeprefix("$ ").split()],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    printed = done.stdout.splitlines()
    for line in lines:
        assert line == "..." or line in printed, line


def test_contributing_example_is_a_whole_encoding(tmp_path: Path) -> None:
    """The encoding of CONTRIBUTING.md, as its own file, decodes and scans like any other."""
    [example] = [body for page, body in blocks("python") if page == "CONTRIBUTING.md"]
    (tmp_path / "example_types.py").write_text(example)
    use = (
        "import numpy as np, example_types\n"
        "from qassay.encodings import by_id\n"
        "from qassay.kernels import fast_decode, reference\n"
        "kind = by_id('example.t2_0')\n"
        "assert (kind.block_bytes, kind.bits_per_weight()) == (18, 2.25)\n"
        "raw = np.arange(18 * 40, dtype=np.uint8)\n"
        "one, two = reference.dequantize(raw, kind), fast_decode.dequantize(raw, kind)\n"
        "assert np.array_equal(one, two, equal_nan=True) and one.size == 64 * 40\n"
        "import qassay\n"
        "from qassay.testing.gguf_writer import write_gguf\n"
        "raw.reshape(-1, 18)[:, :2] = [0, 60]\n"
        "raw.reshape(-1, 18)[7, :2] = [0, 126]\n"
        "tensor = ('a.weight', 9999, [64, 40], raw.tobytes())\n"
        "open('a.gguf', 'wb').write(write_gguf({}, [tensor]))\n"
        "report = qassay.check('a.gguf')\n"
        "[finding] = report.findings\n"
        "assert (finding.code, finding.location.row) == ('Q201', 7), finding\n"
        "assert report.to_dict()['tensors'][0]['encoding'] == 'example.t2_0'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"

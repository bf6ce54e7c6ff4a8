"""Names out of files are untrusted: none reaches the output raw."""

from __future__ import annotations

import json
import unicodedata

import pytest

from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors

NAMES = {
    "ansi": "a\x1b[31mred\x1b]0;title\x07",
    "newline": "a\nclean: no errors, no warnings",
    "return": "a\rclean",
    "bidi": "a\u202egnp.exe\u2066",
    "c1": "a\x9b31m",
    "separator": "a\u2028b\u2029c\x85d",
    "nul": "a\0b",
    "surrogate": "a\udcffb",
    "backslash": "a\\x1b",
    "long": "n" * 10_000,
    "tag": "a\U000e0041b",
    "wide": "層.0.重み",
}


def assert_calm(text: str) -> None:
    """Assert that nothing in `text` is a control, format, separator or surrogate character."""
    for char in text.replace("\n", ""):
        assert char == " " or unicodedata.category(char)[0] not in "CZ", repr(char)


def _gguf(name: str) -> bytes:
    bad = b"\x00\x7e" + bytes(32)
    return write_gguf(
        {"general.architecture": "x", name[:100]: name, "list": [name, name]},
        [(name, 8, (32, 1), bad), (f"{name}2", 16, (256,), bytes(66)), (f"{name}3", 77, (1,), b"")],
    )


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize(
    "args", [["check"], ["check", "-v"], ["inspect"], ["inspect", "--key", "list"]], ids=" ".join
)
def test_gguf(run, tmp_path, name, args):
    path = tmp_path / "m.gguf"
    path.write_bytes(_gguf(name))
    result = run(*args, path)
    assert result.stdout
    assert_calm(result.stdout)
    assert_calm(result.stderr)
    assert max(len(line) for line in result.stdout.splitlines()) < 12_000
    json.loads(run(*args, path, "-f", "json").stdout.encode("ascii"))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_safetensors(run, tmp_path, name):
    path = tmp_path / "m.safetensors"
    nan = b"\x00\x00\xc0\x7f" * 4
    path.write_bytes(write_safetensors([(name, "F32", [2, 2], nan), (f"{name}2", "F7", [1], b"")]))
    for args in (["check"], ["inspect"]):
        result = run(*args, path)
        assert_calm(result.stdout)
        assert_calm(result.stderr)


@pytest.mark.parametrize("name", [name for name in NAMES.values() if "\0" not in name])
def test_paths(run, tmp_path, name):
    path = tmp_path / f"{name[:60]}.gguf"
    try:
        path.write_bytes(_gguf("plain"))
    except (OSError, UnicodeError):
        pytest.skip("the file system refuses the name")
    for args in (
        ["check", path],
        ["inspect", path],
        ["check", f"{path}.missing"],
        ["explain", name[:60]],
    ):
        result = run(*args)
        assert_calm(result.stdout)
        assert_calm(result.stderr)


def test_json_keeps_a_name_exactly(run, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(_gguf(NAMES["surrogate"]))
    document = json.loads(run("check", path, "-f", "json").stdout)
    (found,) = [finding for finding in document["findings"] if finding["code"] == "Q201"]
    assert found["tensor"] == NAMES["surrogate"]
    assert document["tensors"][0]["name"] == NAMES["surrogate"]


def test_a_newline_cannot_forge_a_verdict(run, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(_gguf(NAMES["newline"]))
    lines = run("check", path).stdout.splitlines()
    assert not [line for line in lines if line.startswith("clean")]
    assert lines[-1].startswith("findings")

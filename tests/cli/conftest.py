"""Small sound and broken files, and ways to run the command line on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import qassay
from qassay.cli.main import cli
from qassay.encodings.registry import by_id
from qassay.testing.content import healthy
from qassay.testing.gguf_writer import write_gguf

METADATA = {"general.architecture": "llama", "general.name": "tiny"}


def _blocks(encoding: str, units: int) -> bytearray:
    return bytearray(healthy(by_id(encoding), units).tobytes())


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, without settings of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("QASSAY_") or name == "NO_COLOR":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run the command line in this process."""

    def call(*args: object, **env: str) -> Result:
        runner = CliRunner(env=env)
        result = runner.invoke(cli, [str(arg) for arg in args], prog_name="qassay")
        unexpected = result.exception
        assert unexpected is None or isinstance(unexpected, SystemExit), result.exc_info
        return result

    return call


@pytest.fixture
def spawn() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run the command line in a process of its own."""
    root = str(Path(qassay.__file__).parent.parent)

    def call(*args: object, **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "qassay", *map(str, args)],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": root, **env},
            timeout=120,
        )

    return call


def sound_bytes() -> bytes:
    return write_gguf(
        METADATA,
        [
            ("blk.0.ffn_up.weight", 8, (64, 4), bytes(_blocks("q8_0", 8))),
            ("blk.0.attn_norm.weight", 0, (64,), bytes(_blocks("f32", 64))),
        ],
    )


def broken_bytes() -> bytes:
    up = _blocks("q8_0", 8)
    for block in (3, 5, 6):
        up[34 * block : 34 * block + 2] = b"\x00\x7e"
    norm = _blocks("f32", 64)
    norm[4 * 7 : 4 * 8] = b"\x00\x00\x80\x7f"
    return write_gguf(
        METADATA,
        [
            ("blk.0.ffn_up.weight", 8, (64, 4), bytes(up)),
            ("blk.0.attn_norm.weight", 0, (64,), bytes(norm)),
        ],
    )


def unknown_bytes() -> bytes:
    """Return a file with one tensor of a type that is not read: IQ2_XXS, 66 bytes a block."""
    return write_gguf(
        METADATA,
        [
            ("known", 0, (32,), bytes(_blocks("f32", 32))),
            ("unknown", 16, (256,), bytes(66)),
        ],
    )


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.gguf"
    path.write_bytes(sound_bytes())
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.gguf"
    path.write_bytes(broken_bytes())
    return path


@pytest.fixture
def warned(tmp_path: Path) -> Path:
    """A file with a warning and no error: a zero scale over live codes."""
    up = _blocks("q8_0", 8)
    up[34:36] = b"\x00\x00"
    path = tmp_path / "warned.gguf"
    path.write_bytes(write_gguf(METADATA, [("blk.0.ffn_up.weight", 8, (64, 4), bytes(up))]))
    return path


@pytest.fixture
def partly(tmp_path: Path) -> Path:
    path = tmp_path / "partly.gguf"
    path.write_bytes(unknown_bytes())
    return path


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.gguf"
    path.write_bytes(write_gguf(METADATA, []))
    return path

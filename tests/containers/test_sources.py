"""Sources: what they read, what they refuse, and that closing never hurts."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from qassay.containers import MmapSource, open_container
from qassay.core.errors import InputError


def test_reads_ranges_without_copying_or_writing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    source = MmapSource(path, "x")
    assert (source.name, source.size) == ("x", 100)
    part = source.read(10, 5)
    assert part.dtype == np.uint8
    assert part.tolist() == [10, 11, 12, 13, 14]
    assert not part.flags.writeable
    assert np.shares_memory(part, source.read(0, 100))
    assert source.read(100, 0).size == 0


@pytest.mark.parametrize(("offset", "length"), [(0, 101), (100, 1), (-1, 5), (5, -1), (1 << 70, 1)])
def test_a_range_outside_the_file_is_refused(tmp_path: Path, offset: int, length: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    with pytest.raises(InputError) as caught:
        MmapSource(path, "x").read(offset, length)
    assert caught.value.path == "x"
    assert caught.value.offset == offset


def test_an_empty_file_is_a_source_of_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    source = MmapSource(path)
    assert source.size == 0
    assert not source.read(0, 0).flags.writeable
    source.close()


def test_arrays_outlive_the_source(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    source = MmapSource(path, "x")
    part = source.read(7, 3)
    source.close()
    source.close()
    assert part.tolist() == [7, 8, 9]
    with pytest.raises(InputError, match="closed"):
        source.read(0, 1)


def test_a_pickled_source_is_a_closed_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100_000))
    pickled = pickle.dumps(MmapSource(path, "x"))
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert (copy.name, copy.size) == ("x", 100_000)
    with pytest.raises(InputError, match="closed"):
        copy.read(0, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("opener", [MmapSource, open_container])
def test_a_fifo_is_refused_without_waiting(tmp_path: Path, opener: type) -> None:
    path = tmp_path / "model.gguf"
    os.mkfifo(path)
    with pytest.raises(InputError) as caught:
        opener(path)
    assert caught.value.found == "a FIFO"
    assert caught.value.hint


def test_a_device_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        open_container("/dev/null")
    assert caught.value.found == "a character device"


@pytest.mark.parametrize(
    "name", ["missing.gguf", "missing/model.gguf", "nul\0byte.gguf", "x" * 5000]
)
def test_what_is_not_there_is_an_input_error_with_a_hint(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        open_container(tmp_path / name)
    assert caught.value.hint
    assert str(tmp_path) not in str(caught.value)


def test_no_permission_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    with pytest.raises(InputError) as caught:
        open_container(path)
    assert caught.value.found == "permission denied"


def test_permission_errors_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError) as caught:
        open_container(path)
    assert caught.value.found == "permission denied"
    assert caught.value.path == "model.gguf"


def test_the_name_is_the_path_as_given_or_the_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    monkeypatch.chdir(tmp_path)
    assert open_container("sub/m.gguf").path == "sub/m.gguf"
    assert open_container(tmp_path / "sub" / "m.gguf").path == "m.gguf"
    assert open_container("sub").path == "sub"
    assert open_container(tmp_path / "sub").path == "sub"
    assert open_container("sub").extra["parts"]["m.gguf"].path == "sub/m.gguf"


def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100_000))
    source = MmapSource(path, "x")
    os.truncate(path, 50_000)
    assert source.read(0, 50_000).size == 50_000
    with pytest.raises(InputError, match="shrank") as caught:
        source.read(40_000, 20_000)
    assert (caught.value.offset, caught.value.found) == (40_000, "50000 bytes")

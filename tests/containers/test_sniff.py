"""Wrong files: each is called by its name, and the user is told what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qassay.containers import open_container
from qassay.containers.sniff import raw_part
from qassay.core.errors import InputError
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors


def _zip(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.bin"), io.BytesIO())
    return out.getvalue()


def _npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    return out.getvalue()


def _npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, a=np.zeros(3))
    return out.getvalue()


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 514976\n".format("ab" * 32)
BIG = bytearray(write_gguf({}, [("a", 0, (8,), b"1" * 32)]))
BIG[4:8] = struct.pack(">I", 3)

WRONG: dict[str, tuple[bytes, str, str]] = {
    "lfs": (LFS.encode(), "a Git LFS pointer that stands for a file of 514976 bytes", "git lfs"),
    "html": (b"\n<!DOCTYPE html>\n<html><title>Login</title>", "an HTML page", "download"),
    "html, plain": (b"<HTML><body>502 Bad Gateway</body></HTML>", "an HTML page", "download"),
    "xml": (b"<?xml version='1.0'?><Error>AccessDenied</Error>", "an XML document", "token"),
    "json": (b'{"error":"Repository not found"}', "Repository not found", "download"),
    "json, marked": (b'\xef\xbb\xbf{"error":"Invalid"}', "a JSON document", "download"),
    "text": (b"Entry not found\n", 'text ("Entry not found")', "download"),
    "long text": ("\u00fcber " .encode() * 900, "text", "download"),
    "empty": (b"", "an empty file", "download"),
    "zeros": (bytes(5000), "nothing but zero bytes", "reserved"),
    "zeros, then not": (bytes(3 << 20) + b"x", "1048576 zero bytes up front", "reserved"),
    "torch": (_zip(archive__data_dot_pkl=b"x", archive__data__0=b"1"), "PyTorch", "convert"),
    "torch, old": (pickle.dumps(0x1950A86A20F9469CFC6C, 2) + b"\x80\x02M.", "pickle", "convert"),
    "pickle": (pickle.dumps({"state_dict": [1, 2]}, 4), "pickle", "convert"),
    "npz": (_npz(), "NumPy .npz", "convert"),
    "npy": (_npy(), "NumPy .npy", "convert"),
    "zip": (_zip(readme=b"x"), "a zip archive", "unpack"),
    "empty zip": (_zip(), "a zip archive", "unpack"),
    "tar": (_tar(), "a tar archive", "unpack"),
    "gzip": (gzip.compress(b"x" * 99), "gzip", "unpack"),
    "xz": (lzma.compress(b"x" * 99), "xz", "unpack"),
    "bzip2": (bz2.compress(b"x" * 99), "bzip2", "unpack"),
    "zstd": (b"\x28\xb5\x2f\xfd\x24\x05" + b"x" * 20, "Zstandard", "unpack"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(90), "an HDF5 file", "convert"),
    "onnx": (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:" + bytes(50), "an ONNX model", "GGUF"),
    "ggml": (struct.pack("<I", 0x67676D6C) + bytes(60), "ggml", "llama.cpp"),
    "ggmf": (struct.pack("<II", 0x67676D66, 1) + bytes(60), "ggmf", "llama.cpp"),
    "ggjt": (struct.pack("<II", 0x67676A74, 3) + bytes(60), "ggjt", "llama.cpp"),
    "ggla": (struct.pack("<II", 0x67676C61, 1) + bytes(60), "ggla", "llama.cpp"),
    "version 1": (write_gguf({}, version=1), "a GGUF file of version 1", "llama.cpp"),
    "big-endian": (bytes(BIG), "a big-endian GGUF file (version 3)", "endian"),
    "big-endian, swapped": (b"FUGG" + bytes(BIG[4:]), "a big-endian GGUF file", "endian"),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(60), "an executable", "name"),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".gguf", ".safetensors", ".bin", ""])
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_files(open_bytes: Any, kind: str, suffix: str) -> None:
    data, found, hint = WRONG[kind]
    with pytest.raises(InputError) as caught:
        open_bytes(data, suffix)
    error = caught.value
    assert found in str(error.found)
    assert hint in str(error.hint)
    assert (error.path, error.offset) == (f"model{suffix}", 0)
    assert error.expected == "GGUF or safetensors"
    assert "\n" not in str(error)
    assert len(str(error)) < 600


def test_what_servers_say_is_shown_escaped_and_cut(open_bytes: Any) -> None:
    with pytest.raises(InputError) as caught:
        open_bytes(("Not\r\n\tfound \u202e" + "very " * 500).encode())
    found = str(caught.value.found)
    assert found.isprintable()
    assert len(found) < 120


@pytest.mark.parametrize("suffix", [".gguf", ".safetensors"])
@pytest.mark.parametrize("length", range(1, 24))
def test_a_few_bytes_under_the_right_suffix_are_a_defect(
    open_bytes: Any, suffix: str, length: int
) -> None:
    sound = (
        write_gguf({"a": 1}, [("a", 0, (8,), b"1" * 32)])
        if suffix == ".gguf"
        else write_safetensors([("a", "U8", [1], b"1")])
    )
    defects = open_bytes(sound[:length], suffix).defects
    assert [d.code for d in defects] == ["Q001"]


def test_unknown_bytes_without_a_suffix_are_refused(open_bytes: Any) -> None:
    with pytest.raises(InputError) as caught:
        open_bytes(bytes(range(1, 250)), name="weights")
    assert caught.value.found == "bytes 01 02 03 04 05 06 07 08"
    assert open_bytes(bytes(range(1, 250)), ".gguf").defects
    assert open_bytes(bytes(range(1, 250)), ".safetensors").defects


def test_a_damaged_magic_is_recognised_without_a_suffix(open_bytes: Any) -> None:
    data = write_gguf({}, [("a", 0, (8,), b"1" * 32)], magic=b"GGUG")
    container = open_bytes(data, name="sha256-abc")
    assert [d.code for d in container.defects] == ["Q003"]
    assert len(container.tensors) == 1


PARTS = {
    "m.gguf.part1of2": "raw part 1 of 2 of m.gguf",
    "m.gguf.part2of2": "raw part 2 of 2 of m.gguf",
    "m.Q4_K_M.gguf.part03of11": "raw part 3 of 11 of m.Q4_K_M.gguf",
    "m.gguf.part00": "raw part 0 of m.gguf",
    "m.gguf.00": "raw part 0 of m.gguf",
    "m.gguf.001": "raw part 1 of m.gguf",
    "m.gguf.part-aa": "raw part 'aa' of m.gguf",
    "m.gguf.partab": "raw part 'ab' of m.gguf",
    "m.gguf.aa": "raw part 'aa' of m.gguf",
    "m.gguf-split-a": "raw part 'a' of m.gguf",
    "m.gguf-split-02": "raw part 2 of m.gguf",
    "m.safetensors.part2": "raw part 2 of m.safetensors",
    "M.GGUF.PART1OF2": "raw part 1 of 2 of M.GGUF",
}
WHOLE = [
    "m.gguf", "m-00001-of-00002.gguf", "m.safetensors", "m.gguf.1", "m.gguf.partial", "m.gguf.part",
    "m.gguf.gz", "m.gguf.xz", "m.gguf.part1of1", "m.gguf.crdownload", "m.gguf.aria2", "m.gguf.bak",
    "m.gguf.old", "m.gguf.asc", "part1of2", "model.part1of2",
]  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("first", [True, False])
def test_raw_parts(open_bytes: Any, name: str, first: bool) -> None:
    whole = write_gguf({}, [("a", 0, (8,), b"1" * 32)])
    with pytest.raises(InputError) as caught:
        open_bytes(whole[:100] if first else whole[100:], name=name)
    assert caught.value.found == PARTS[name]
    assert str(caught.value.hint).startswith("join first: cat ")


@pytest.mark.parametrize("name", WHOLE)
def test_names_that_are_no_raw_parts(name: str) -> None:
    assert raw_part(name) is None


def test_the_advice_for_raw_parts_works(tmp_path: Path) -> None:
    import subprocess

    whole = write_gguf({}, [("a", 0, (8,), b"1" * 32)])
    for base in ("it's $HOME.gguf", "m.gguf"):
        for number, part in enumerate((whole[:50], whole[50:]), 1):
            (tmp_path / f"{base}.part{number}of2").write_bytes(part)
        with pytest.raises(InputError) as caught:
            open_container(tmp_path / f"{base}.part1of2")
        command = str(caught.value.hint).removeprefix("join first: ")
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
        assert open_container(tmp_path / f"joined-{base}").defects == []


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("m.gguf.part2of3", "cat m.gguf.part1of3 m.gguf.part2of3 m.gguf.part3of3"),
        ("m.gguf.part02of11", "cat m.gguf.part{01..11}of11"),
        ("m.gguf.part2of11", "cat m.gguf.part{1..11}of11"),
        ("m.gguf.part-ab", "cat m.gguf.part-*"),
        ("m.gguf.part00", "cat m.gguf.part*"),
        ("m.gguf.001", "cat m.gguf.*"),
        ("my m.gguf.aa", "cat 'my m.gguf.'*"),
    ],
)
def test_how_raw_parts_are_joined(name: str, command: str) -> None:
    part = raw_part(name)
    assert part is not None
    base = "'joined-my m.gguf'" if "my" in name else "joined-m.gguf"
    assert part.hint == f"join first: {command} > {base}"


def test_errors_pickle() -> None:
    with pytest.raises(InputError) as caught:
        open_container("/nowhere/model.gguf")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)

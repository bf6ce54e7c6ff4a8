"""Opening a path: what is it, and which reader takes it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from qassay.containers import imatrix, sniff
from qassay.containers.gguf import MAGIC, VERSIONS, read_gguf
from qassay.containers.packed import mark_packed
from qassay.containers.safetensors import LARGEST_HEADER, read_safetensors
from qassay.containers.sources import INDEX_SUFFIX, MmapSource, check_regular, refusal
from qassay.core.container import Container
from qassay.core.errors import InputError
from qassay.core.source import Source
from qassay.core.text import safe


def display_name(path: Path) -> str:
    """Return how reports name `path`: as given when relative, else without its folder."""
    return path.name or path.anchor if path.is_absolute() else str(path)


def open_container(path: str | os.PathLike[str], name: str | None = None) -> Container:
    """Open a GGUF or safetensors file, a folder of them, or an index of shards.

    The content decides what a file is, and its suffix only where the content does not say.

    Args:
        path: A file, a folder, or a `*.safetensors.index.json`.
        name: How reports name it (the folder, when `path` is an index); by default as `path` says
            when that is relative, else without its folder.

    Returns:
        What could be read, and every structural defect. Close it when done.

    Raises:
        InputError: There is nothing there, it may not be read, or it is no model at all.
    """
    container = _open(Path(path), name)
    container.tensors = mark_packed(container.tensors)
    return container


def _open(place: Path, name: str | None) -> Container:
    shown = name or display_name(place)
    try:
        mode = place.stat().st_mode
    except (OSError, ValueError) as error:
        raise refusal(error, shown) from error
    folder = stat.S_ISDIR(mode)
    if not folder:
        check_regular(mode, shown)
        if not place.name.lower().endswith(INDEX_SUFFIX):
            return open_file(place, shown)
    from qassay.containers.folder import open_folder  # noqa: PLC0415 - most inputs are files

    if folder:
        return open_folder(place, shown, open_file)
    shown = name or display_name(place.parent)
    return open_folder(place.parent, shown, open_file, index=place.name)


def open_file(path: Path, name: str) -> Container:
    """Open the single model file `path`, which reports name `name`.

    Raises:
        InputError: It cannot be opened, or is no model file.
    """
    source = MmapSource(path, name)
    try:
        return _read(source, path.name, name)
    except BaseException:
        source.close()
        raise


def _read(source: Source, file_name: str, name: str) -> Container:
    part = sniff.raw_part(file_name)
    if part is not None:
        raise sniff.refuse(name, part)
    head = source.read(0, min(source.size, sniff.HEAD_BYTES)).tobytes()
    lower = file_name.lower()
    if head[:4] == MAGIC and int.from_bytes(head[4:8], "little") in VERSIONS:
        return read_gguf(source, name)
    if _looks_like_safetensors(head):
        return read_safetensors(source, name)
    if imatrix.looks_like_legacy(head, source.size):
        return imatrix.read_legacy(source, name)
    # A file of a few bytes under the right name is more likely cut than something else.
    cut = 0 < len(head) < 8 and lower.endswith((".gguf", ".safetensors"))
    foreign = None if cut else sniff.identify(source, head)
    if foreign is not None and not _looks_like_gguf(head):
        raise sniff.refuse(name, foreign)
    if lower.endswith(".safetensors") and head[:4] != MAGIC:
        return read_safetensors(source, name)
    if lower.endswith(".gguf") or _looks_like_gguf(head) or head[:4] == MAGIC:
        return read_gguf(source, name)
    raise InputError(
        "this is no model file that can be checked",
        path=name,
        offset=0,
        expected="GGUF or safetensors",
        found=f"bytes {safe(head[:8].hex(' '))}",
        hint="name a .gguf or .safetensors file, or the folder that holds them",
    )


def _looks_like_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= LARGEST_HEADER


def _looks_like_gguf(head: bytes) -> bool:
    """Return whether only a bit or two of the magic are damaged, and a version follows."""
    damage = int.from_bytes(head[:4], "big") ^ int.from_bytes(MAGIC, "big")
    return (
        len(head) >= 8
        and damage.bit_count() <= 2
        and int.from_bytes(head[4:8], "little") in VERSIONS
    )

"""What lies in a checkpoint folder beside the weights: what `qassay pad` copies, and what not."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from qassay.containers.opening import display_name
from qassay.containers.sources import INDEX_SUFFIX
from qassay.containers.strict_json import parse_json
from qassay.core.errors import InputError, UsageError
from qassay.core.text import safe

MOST_FILES = 1 << 16
"""Files and folders that are looked at."""

_WEIGHTS = (
    ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".onnx_data", ".npz", ".h5",
    ".msgpack", ".ot", ".tflite",
)  # fmt: skip
WEIGHTS = "weights in another form or folder, which are not padded"
HIDDEN = "a hidden folder"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that is not copied, by its path in the source, and why."""

    path: str
    reason: str


@dataclass(slots=True)
class Others:
    """What lies in the source beside the weights that were read.

    Attributes:
        folders: Folders in it, each before those that it holds.
        files: Files that are copied.
        left_out: What is not copied: the padded checkpoint is whole without it.
        lost: What should be copied and cannot be.
    """

    folders: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    lost: list[LeftOut] = field(default_factory=list)


def others(source: Path, read: Collection[str]) -> Others:
    """Return what lies in a folder, and in the folders in it, beside the weights.

    Args:
        source: The folder.
        read: Names of its files whose tensors were read: those are written anew.

    Raises:
        InputError: A folder cannot be listed.
        UsageError: There are too many files.
    """
    found = Others()
    folders = [""]
    seen = 0
    while folders:
        folder = folders.pop()
        for entry in _listed(source, folder):
            seen += 1
            if seen > MOST_FILES:
                raise UsageError("too many files to copy", path=safe(display_name(source)),
                                 expected=f"at most {MOST_FILES:,} files and folders",
                                 hint="name a folder that holds the checkpoint alone")  # fmt: skip
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not entry.is_dir(follow_symlinks=False):
                if path not in read:
                    _sort(entry, path, found)
            elif entry.name.startswith("."):
                found.left_out.append(LeftOut(path, HIDDEN))
            else:
                found.folders.append(path)
                folders.append(path)
    return found


def _listed(source: Path, folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(source / folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        shown = safe(f"{display_name(source)}/{folder}".rstrip("/"))
        raise InputError("the source cannot be read in full", path=shown,
                         found=error.strerror or type(error).__name__) from error  # fmt: skip


def _sort(entry: os.DirEntry[str], path: str, found: Others) -> None:
    """Put a file where it belongs. A link counts as what it leads to: hubs keep files as links."""
    try:
        mode = entry.stat().st_mode
    except OSError as error:
        found.lost.append(LeftOut(path, f"it cannot be read: {error.strerror}"))
        return
    if not stat.S_ISREG(mode):
        what = "a link to a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        found.lost.append(LeftOut(path, f"it is no file, but {what}"))
    elif entry.name.lower().endswith(_WEIGHTS):
        found.left_out.append(LeftOut(path, WEIGHTS))
    else:
        found.files.append(path)


def copy_others(source: Path, folder: Path, found: Others, tensor_bytes: int) -> None:
    """Copy what is to be copied; the index of shards states the new size.

    Raises:
        InputError: The index holds what cannot be copied.
        OSError: A file cannot be read or written.
    """
    for path in found.folders:
        (folder / path).mkdir(exist_ok=True)
    for path in found.files:
        if "/" not in path and path.lower().endswith(INDEX_SUFFIX):
            _copy_index(source / path, folder / path, tensor_bytes)
        else:
            shutil.copyfile(source / path, folder / path)


def _copy_index(old: Path, new: Path, total: int) -> None:
    """Copy an index: shards keep their tensors, only `total_size` is another."""
    try:
        index, _ = parse_json(old.read_text(encoding="utf-8"))
        metadata = index.get("metadata")
        if isinstance(metadata, dict) and "total_size" in metadata:
            metadata["total_size"] = total
        text = json.dumps(index, indent=2, allow_nan=False)
    except ValueError as error:  # a number that is none; the rest was read before
        raise InputError("the index cannot be copied", path=display_name(old),
                         found=safe(str(error), 80)) from None  # fmt: skip
    new.write_text(text + "\n", encoding="utf-8")

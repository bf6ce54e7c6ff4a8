"""Folders: sharded checkpoints with an index, and plain collections of model files.

`model.safetensors.index.json` maps every tensor to the shard that holds it::

    {"metadata": {...}, "weight_map": {"model.norm.weight": "model-00002-of-00003.safetensors"}}

Files named there belong together, as do files numbered `-00001-of-00003`; any others in the
folder are models of their own. Nothing below the folder is looked at.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qassay.containers.defects import HEADER_BROKEN, DefectLog
from qassay.containers.shards import (
    FolderReading,
    OpenFile,
    check_numbers,
    check_repeats,
    check_shards,
    models,
    read_index,
    read_json,
)
from qassay.containers.sniff import raw_part
from qassay.containers.sources import INDEX_SUFFIX, refusal
from qassay.core.container import Container, Skipped
from qassay.core.errors import InputError
from qassay.core.text import safe

_MODEL_SUFFIXES = (".safetensors", ".gguf")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".onnx", ".npz", ".h5")
_CONFIG = "config.json"
_QUANT_CONFIGS = (
    "quantize_config.json",  # AutoGPTQ, GPTQModel
    "quant_config.json",  # AutoAWQ, early
    "quantization_config.json",  # AutoRound
    "hf_quant_config.json",  # modelopt
)
_LISTED = 5


def open_folder(
    path: Path, name: str, open_file: OpenFile, *, index: str | None = None
) -> Container:
    """Open the model files of a folder as one container.

    Args:
        path: The folder.
        name: How reports name it.
        open_file: Opens one file, given its path and the name that reports use.
        index: Read only what this index file names; None reads every index and model file.

    Returns:
        The tensors of all files in file-name order, and their defects. `extra` holds `config`
        (when there is a `config.json`), `quant_configs` (the quantizers' own files beside it, by
        name, when there are any), `weight_map` (when there is an index), and `parts`: the
        container of each file by name, whose `metadata` stands alone. `metadata` is that of the
        whole set when the files form one, else empty.

    Raises:
        InputError: The folder may not be read, or no model file in it can.
    """
    files = _list_files(path, name)
    reading = FolderReading(path, name, open_file, DefectLog(name))
    indexes = [index] if index else [f for f in files if f.lower().endswith(INDEX_SUFFIX)]
    weight_map: dict[str, str] = {}
    for file in indexes:
        weight_map.update(read_index(reading, file))
    named = set(weight_map.values())
    present = [f for f in files if f.lower().endswith(_MODEL_SUFFIXES)]
    if index:
        present = [f for f in present if f in named]
    for file in present:
        _open_part(reading, file, named)
    if not reading.parts and not indexes:
        raise _nothing(reading, files)
    check_shards(reading, weight_map, set(files), indexes)
    check_numbers(reading, named)
    check_repeats(reading, named)
    return _assemble(reading, weight_map, named, files)


def _list_files(path: Path, name: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            # Symbolic links are followed: a download cache keeps its files elsewhere.
            return sorted(e.name for e in entries if _is_wanted(e.name) or _is_file(e))
    except OSError as error:
        raise refusal(error, name) from error


def _is_wanted(name: str) -> bool:
    """Tell whether a name promises something to read: then it counts, whatever bears it."""
    return name.lower().endswith((*_MODEL_SUFFIXES, INDEX_SUFFIX)) or name in (
        _CONFIG,
        *_QUANT_CONFIGS,
    )


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads in circles, or into a folder that may not be read
        return False


def _open_part(reading: FolderReading, file: str, named: set[str]) -> None:
    try:
        reading.parts[file] = reading.open_file(reading.path / file, reading.display(file))
    except InputError as refused:
        error = _no_target(reading, file) or refused
        reading.refused[file] = error
        if file not in named:
            reason = f"{error.message}: found {error.found}" if error.found else error.message
            reading.skipped.append(Skipped(reading.display(file), reason))


def _no_target(reading: FolderReading, file: str) -> InputError | None:
    """Say so if a file is a link that leads nowhere, or in circles."""
    path = reading.path / file
    if not path.is_symlink() or os.path.lexists(os.path.realpath(path)):
        return None
    return InputError(
        "this is a symbolic link without a target",
        path=reading.display(file),
        expected="a link to a file",
        found="a link that leads to none",
        hint="download the file again: the cache that the link leads into is incomplete",
    )


def _nothing(reading: FolderReading, files: list[str]) -> InputError:
    """Say why no file of the folder could be read."""
    if reading.refused:
        file, error = next(iter(reading.refused.items()))
        return InputError(
            f"none of the {len(reading.refused)} model files in this folder can be read",
            path=reading.name,
            expected=error.expected,
            found=f"{safe(file)}: {error.found or error.message}",
            hint=error.hint,
        )
    pieces = [piece for piece in map(raw_part, files) if piece]
    others = [f for f in files if f.lower().endswith(_OTHER_WEIGHTS)]
    found, hint = "no such file", "name a folder that holds .safetensors or .gguf files"
    if pieces:
        found, hint = pieces[0]
    elif others:
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        found = f"{', '.join(safe(f, 60) for f in others[:_LISTED])}{more}"
        hint = "convert them to safetensors or GGUF first"
    return InputError(
        "this folder holds no model file that can be checked",
        path=reading.name,
        expected="*.safetensors or *.gguf",
        found=found,
        hint=hint,
    )


def _assemble(
    reading: FolderReading, weight_map: dict[str, str], named: set[str], files: list[str]
) -> Container:
    parts = dict(sorted(reading.parts.items()))
    container = Container(path=reading.name, format="folder", skipped=reading.skipped)
    read = {part.path for part in parts.values()}
    for part in parts.values():
        container.tensors.extend(part.tensors)
        container.defects.extend(part.defects)
        container.sources.extend(part.sources)
        container.skipped.extend(
            skip for skip in part.skipped if skip.name not in read or skip.reason == HEADER_BROKEN
        )
    if len(models(reading, named)) == 1:
        merged: dict[str, Any] = {}
        for part in parts.values():
            merged = {**part.metadata, **merged}
        container.metadata = merged
    if weight_map:
        container.extra["weight_map"] = weight_map
    if _CONFIG in files:
        config = read_json(reading, _CONFIG, _CONFIG)
        if config is not None:
            container.extra["config"] = config
    beside = {file: read_json(reading, file, file) for file in _QUANT_CONFIGS if file in files}
    quant_configs = {file: value for file, value in beside.items() if value is not None}
    if quant_configs:
        container.extra["quant_configs"] = quant_configs
    container.extra["parts"] = parts
    container.extra["missing_tensors"] = reading.missing
    container.defects.extend(reading.log.finish())
    return container

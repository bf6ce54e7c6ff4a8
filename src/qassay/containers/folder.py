"""Folders: sharded checkpoints with an index, and plain collections of model files.

`model.safetensors.index.json` maps every tensor to the shard that holds it::

    {"metadata": {...}, "weight_map": {"model.norm.weight": "model-00002-of-00003.safetensors"}}

Files named there belong together, as do files numbered `-00001-of-00003`; any others in the
folder are models of their own. Nothing below the folder is looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qassay.containers.defects import DefectLog
from qassay.containers.sniff import raw_part
from qassay.containers.sources import MmapSource, refusal
from qassay.containers.strict_json import JsonError, JsonObject, parse_json
from qassay.core.container import Container, Defect, Skipped
from qassay.core.errors import InputError
from qassay.core.text import safe

INDEX_SUFFIX = ".safetensors.index.json"
_MODEL_SUFFIXES = (".safetensors", ".gguf")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".onnx", ".npz", ".h5")
_LARGEST_JSON = 1 << 26
_NUMBERED = re.compile(r"(.+)-(\d{1,6})-of-(\d{1,6})(\.\w+)", re.DOTALL)
_LISTED = 5

OpenFile = Callable[[Path, str], Container]


@dataclass(slots=True)
class _Reading:
    path: Path
    name: str
    open_file: OpenFile
    log: DefectLog
    parts: dict[str, Container] = field(default_factory=dict)
    refused: dict[str, InputError] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def display(self, file: str) -> str:
        return f"{self.name.rstrip('/')}/{file}"


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
        (when there is a `config.json`), `weight_map` (when there is an index), and `parts`: the
        container of each file by name, whose `metadata` stands alone. `metadata` is that of the
        whole set when the files form one, else empty.

    Raises:
        InputError: The folder may not be read, or no model file in it can.
    """
    files = _list_files(path, name)
    reading = _Reading(path, name, open_file, DefectLog(name))
    indexes = [index] if index else [f for f in files if f.lower().endswith(INDEX_SUFFIX)]
    weight_map: dict[str, str] = {}
    for file in indexes:
        weight_map.update(_read_index(reading, file))
    named = set(weight_map.values())
    present = [f for f in files if f.lower().endswith(_MODEL_SUFFIXES)]
    if index:
        present = [f for f in present if f in named]
    for file in present:
        _open_part(reading, file, named)
    if not reading.parts and not indexes:
        raise _nothing(reading, files)
    _check_shards(reading, weight_map, set(files), indexes)
    _check_numbers(reading, named)
    _check_repeats(reading, named)
    return _assemble(reading, weight_map, named, files)


def _list_files(path: Path, name: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            # Symbolic links are followed: a download cache keeps its files elsewhere.
            return sorted(entry.name for entry in entries if entry.is_file())
    except OSError as error:
        raise refusal(error, name) from error


def _open_part(reading: _Reading, file: str, named: set[str]) -> None:
    try:
        reading.parts[file] = reading.open_file(reading.path / file, reading.display(file))
    except InputError as error:
        reading.refused[file] = error
        if file not in named:
            reason = f"{error.message}: found {error.found}" if error.found else error.message
            reading.skipped.append(Skipped(reading.display(file), reason))


def _nothing(reading: _Reading, files: list[str]) -> InputError:
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
    found, hint = "neither", "name a folder that holds .safetensors or .gguf files"
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


def _read_json(reading: _Reading, file: str, what: str) -> JsonObject | None:
    """Return the object in a JSON file of the folder; report and return None otherwise."""
    log = DefectLog(reading.display(file))
    value: Any = None
    text = ""
    try:
        source = MmapSource(reading.path / file, reading.display(file))
        if source.size > _LARGEST_JSON:
            raise JsonError(f"it has {source.size} bytes, more than the {_LARGEST_JSON} read")
        text = source.read(0, source.size).tobytes().decode("utf-8")
        value, end = parse_json(text)
        if text[end:].strip(" \t\r\n"):
            raise JsonError("something follows the JSON value", end)
    except InputError as error:
        log.add("Q003", f"{what} cannot be read: {error.message}", found=error.found)
    except JsonError as error:
        at = len(text[: error.offset].encode("utf-8"))
        log.add("Q003", f"{what} is not JSON: {safe(str(error), 80)}", at=at)
    except UnicodeDecodeError as error:
        log.add("Q003", f"{what} is not UTF-8", at=error.start, expected="UTF-8")
    else:
        if isinstance(value, JsonObject):
            for key, _ in value.repeated:
                log.add("Q003", f"{what} has the key '{safe(key)}' twice", minor=True)
        else:
            log.add("Q003", f"{what} is no JSON object", at=0, expected="an object")
    reading.log.take(log.finish())
    return value if isinstance(value, JsonObject) else None


def _read_index(reading: _Reading, file: str) -> dict[str, str]:
    """Return which shard the index puts each tensor in; names that leave the folder are refused."""
    index = _read_json(reading, file, "the index")
    if index is None:
        return {}
    log = DefectLog(reading.display(file))
    entries = index.get("weight_map")
    weight_map: dict[str, str] = {}
    refused: set[str] = set()
    if not isinstance(entries, JsonObject):
        log.add("Q003", "the index has no weight_map object", at=0, expected="an object")
        entries = JsonObject()
    for tensor, shard in entries.items():
        shown = safe(tensor)
        if not isinstance(shard, str):
            log.add(
                "Q003",
                f"the index names no file for tensor '{shown}'",
                tensor=tensor,
                expected="a file name",
                found=type(shard).__name__,
            )
        elif not _is_file_name(shard):
            if shard not in refused:
                log.add(
                    "Q005",
                    f"the index puts tensor '{shown}' in '{safe(shard)}', which is no file name; "
                    "it was not followed",
                    tensor=tensor,
                    expected="the name of a file beside the index",
                    found=safe(shard),
                    fix="edit the index: a shard is named without any folder",
                )
            refused.add(shard)
        else:
            weight_map[tensor] = shard
    for tensor, _ in entries.repeated:
        message = f"the index has tensor '{safe(tensor)}' twice"
        log.add("Q007", message, tensor=tensor, expected="every name once")
    reading.log.take(log.finish())
    return weight_map


def _is_file_name(shard: str) -> bool:
    # A backslash or a colon leads out of the folder on Windows; a NUL stops every system call.
    bad = any(char in shard for char in "/\\:\0")
    return shard not in ("", ".", "..") and not bad and _encodable(shard)


def _encodable(name: str) -> bool:
    try:
        return len(os.fsencode(name)) <= 255
    except UnicodeEncodeError:
        return False


def _check_shards(
    reading: _Reading, weight_map: dict[str, str], files: set[str], indexes: list[str]
) -> None:
    """Compare what the index promises with what its shards hold."""
    if not indexes:
        return
    promised: dict[str, list[str]] = {}
    for tensor, shard in weight_map.items():
        promised.setdefault(shard, []).append(tensor)
    log = DefectLog(reading.display(indexes[0]))
    for shard, tensors in sorted(promised.items()):
        if shard in reading.parts:
            held = {tensor.name for tensor in reading.parts[shard].tensors}
            for tensor in tensors:
                if tensor not in held:
                    log.add(
                        "Q005",
                        f"tensor '{safe(tensor)}' is not in '{safe(shard)}', where the index puts "
                        "it",
                        tensor=tensor,
                        expected=f"in '{safe(shard)}'",
                        found=_whereabouts(reading, tensor),
                        fix="download index and shards of the same revision, or write both again",
                    )
        else:
            _report_missing(reading, shard, tensors, shard in files, log)
    reading.log.take(log.finish())
    for file, part in sorted(reading.parts.items()):
        if file.lower().endswith(".safetensors"):
            _report_unlisted(reading, file, part, set(promised.get(file, ())))


def _whereabouts(reading: _Reading, tensor: str) -> str:
    # Only asked for a defect, and the shards are few.
    for file, part in reading.parts.items():
        if any(other.name == tensor for other in part.tensors[:100_000]):
            return f"in '{safe(file)}'"
    return "in no shard"


def _report_missing(
    reading: _Reading, shard: str, tensors: list[str], present: bool, log: DefectLog
) -> None:
    error = reading.refused.get(shard)
    if error is not None:
        found, fix = error.found or error.message, error.hint or ""
    elif present:
        found, fix = "a file of another kind", "an index of this name lists safetensors files"
    else:
        found, fix = "no such file", ""
    log.add(
        "Q005",
        f"shard '{safe(shard)}', which holds {len(tensors)} tensors by the index (the first is "
        f"'{safe(tensors[0])}'), cannot be read: {found}",
        expected=f"the file '{safe(shard)}'",
        found=found,
        fix=fix,
        shard=shard,
        tensors=len(tensors),
    )


def _report_unlisted(reading: _Reading, file: str, part: Container, listed: set[str]) -> None:
    """Report tensors that the index does not put in `file`; a file it never names counts as one."""
    unlisted = [tensor for tensor in part.tensors if tensor.name not in listed]
    if not unlisted:
        return
    log = DefectLog(reading.display(file))
    if not listed:
        message = f"the index names no tensor of this file, which holds {len(unlisted)}"
        log.add("Q110", message, expected="an entry in the index", minor=True)
        unlisted = []
    for tensor in unlisted:
        log.add(
            "Q110",
            f"the index does not put tensor '{safe(tensor.name)}' in this shard",
            tensor=tensor.name,
            at=tensor.offset,
            expected="an entry in the index",
            minor=True,
        )
    reading.log.take(log.finish())


def _sets(reading: _Reading, named: set[str]) -> dict[str, list[str]]:
    """Group the files that were read into models: those of the index, numbered ones, single ones."""
    groups: dict[str, list[str]] = {}
    for file in reading.parts:
        match = _NUMBERED.fullmatch(file)
        if file in named:
            key = "\0index"
        elif match:
            key = f"{match[1]}\0{int(match[3])}\0{match[4].lower()}"
        else:
            key = file
        groups.setdefault(key, []).append(file)
    return groups


def _check_numbers(reading: _Reading, named: set[str]) -> None:
    """Report the numbers that are missing among files named `-00001-of-00003` without an index."""
    groups: dict[tuple[str, int, str], set[int]] = {}
    for file in (*reading.parts, *reading.refused):
        match = _NUMBERED.fullmatch(file)
        if match and file not in named:
            groups.setdefault((match[1], int(match[3]), match[4]), set()).add(int(match[2]))
    for (base, total, suffix), numbers in sorted(groups.items()):
        missing = total - len([number for number in numbers if 1 <= number <= total])
        # Some writers count from zero: then the last number is the one that does not occur.
        if missing <= (0 in numbers):
            continue
        first = next(number for number in range(1, total + 1) if number not in numbers)
        reading.log.add(
            "Q005",
            f"{missing} of {total} shards named '{safe(base)}-...-of-...{suffix}' are missing; the "
            f"first is number {first}",
            expected=f"{total} files",
            found=f"{total - missing} files",
            missing=missing,
        )


def _check_repeats(reading: _Reading, named: set[str]) -> None:
    """Report a tensor that two files of one model hold (Q007)."""
    for files in _sets(reading, named).values():
        holder: dict[str, str] = {}
        for file in files if len(files) > 1 else ():
            log = DefectLog(reading.display(file))
            for tensor in reading.parts[file].tensors:
                other = holder.setdefault(tensor.name, file)
                if other != file:
                    log.add(
                        "Q007",
                        f"tensor '{safe(tensor.name)}' is in '{safe(other)}' and in '{safe(file)}'",
                        tensor=tensor.name,
                        at=tensor.offset,
                        expected="every name in one shard",
                        found=f"in '{safe(other)}', too",
                    )
            reading.log.take(log.finish())


def _assemble(
    reading: _Reading, weight_map: dict[str, str], named: set[str], files: list[str]
) -> Container:
    parts = dict(sorted(reading.parts.items()))
    container = Container(path=reading.name, format="folder", skipped=reading.skipped)
    read = {part.path for part in parts.values()}
    for part in parts.values():
        container.tensors.extend(part.tensors)
        container.defects.extend(part.defects)
        container.sources.extend(part.sources)
        container.skipped.extend(skip for skip in part.skipped if skip.name not in read)
    if len(_sets(reading, named)) == 1:
        merged: dict[str, Any] = {}
        for part in parts.values():
            merged = {**part.metadata, **merged}
        container.metadata = merged
    if weight_map:
        container.extra["weight_map"] = weight_map
    if "config.json" in files:
        config = _read_json(reading, "config.json", "config.json")
        if config is not None:
            container.extra["config"] = config
    container.extra["parts"] = parts
    container.defects.extend(reading.log.finish())
    return container

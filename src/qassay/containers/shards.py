"""What a folder's index and its file names promise, compared with what its files hold."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qassay.containers.defects import MOST_OF_A_CODE, DefectLog
from qassay.containers.sources import MmapSource
from qassay.containers.strict_json import JsonError, JsonObject, parse_json
from qassay.core.container import Container, Skipped
from qassay.core.errors import InputError
from qassay.core.text import safe

_LARGEST_JSON = 1 << 26
_NUMBERED = re.compile(r"(.+)-(\d{1,6})-of-(\d{1,6})(\.\w+)", re.DOTALL)

OpenFile = Callable[[Path, str], Container]


@dataclass(slots=True)
class FolderReading:
    """A folder while it is read.

    Attributes:
        path: Where it is.
        name: How reports name it.
        open_file: Opens one file, given its path and the name that reports use.
        log: Takes the defects.
        parts: The files that were opened, by file name.
        refused: Why others could not be.
        skipped: Those of them that no index promises, and what an index promises in vain.
        missing: Tensors that an index lists and no file holds.
    """

    path: Path
    name: str
    open_file: OpenFile
    log: DefectLog
    parts: dict[str, Container] = field(default_factory=dict)
    refused: dict[str, InputError] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    missing: int = 0

    def display(self, file: str) -> str:
        """Return how reports name a file of this folder."""
        return f"{self.name.rstrip('/')}/{file}"


def read_json(reading: FolderReading, file: str, what: str) -> JsonObject | None:
    """Return the object in a JSON file of the folder; report (Q003) and return None otherwise."""
    log = DefectLog(reading.display(file))
    value: Any = None
    try:
        value = _load(reading.path / file, reading.display(file))
    except InputError as error:
        log.add("Q003", f"{what} cannot be read: {error.message}", found=error.found)
    except JsonError as error:
        log.add("Q003", f"{what} is not JSON: {safe(str(error), 80)}", at=error.offset)
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


def _load(path: Path, name: str) -> Any:
    source = MmapSource(path, name)
    if source.size > _LARGEST_JSON:
        raise JsonError(f"it has {source.size} bytes, more than the {_LARGEST_JSON} that are read")
    text = source.read(0, source.size).tobytes().decode("utf-8")
    try:
        value, end = parse_json(text)
    except JsonError as error:
        raise JsonError(str(error), len(text[: error.offset].encode())) from error
    if text[end:].strip(" \t\r\n"):
        raise JsonError("something follows the JSON value", len(text[:end].encode()))
    return value


def read_index(reading: FolderReading, file: str) -> dict[str, str]:
    """Return which shard the index puts each tensor in; names that leave the folder are refused."""
    index = read_json(reading, file, "the index")
    if index is None:
        return {}
    log = DefectLog(reading.display(file))
    entries = index.get("weight_map")
    weight_map: dict[str, str] = {}
    refused: set[str] = set()
    if not isinstance(entries, JsonObject):
        log.add("Q003", "the index has no weight_map object", at=0, expected="an object")
        entries = JsonObject()
    elif not entries:
        log.add("Q003", "the weight_map of the index is empty", at=0, expected="an entry a tensor")
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


def check_shards(
    reading: FolderReading, weight_map: dict[str, str], files: set[str], indexes: list[str]
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
                    reading.missing += 1
                    if reading.missing <= MOST_OF_A_CODE:
                        reading.skipped.append(
                            Skipped(tensor, f"'{safe(shard)}', where the index puts it, lacks it")
                        )
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
    for file, part in sorted(reading.parts.items()) if weight_map else ():
        if file.lower().endswith(".safetensors"):
            _report_unlisted(reading, file, part, set(promised.get(file, ())))


def _whereabouts(reading: FolderReading, tensor: str) -> str:
    # Only asked for a defect, and the shards are few.
    for file, part in reading.parts.items():
        if any(other.name == tensor for other in part.tensors[:100_000]):
            return f"in '{safe(file)}'"
    return "in no shard"


def _report_missing(
    reading: FolderReading, shard: str, tensors: list[str], present: bool, log: DefectLog
) -> None:
    error = reading.refused.get(shard)
    if error is not None:
        found, fix = error.found or error.message, error.hint or ""
    elif present:
        found, fix = "a file of another kind", "an index of this name lists safetensors files"
    else:
        found, fix = "no such file", ""
    reading.missing += len(tensors)
    lost = f"the shard with {len(tensors)} of the tensors cannot be read: {found}"
    reading.skipped.append(Skipped(reading.display(shard), lost))
    log.add(
        "Q005",
        f"shard '{safe(shard)}', which the index names for {len(tensors)} tensor(s) (the first is "
        f"'{safe(tensors[0])}'), cannot be read: {found}",
        expected=f"the file '{safe(shard)}'",
        found=found,
        fix=fix,
        shard=shard,
        tensors=len(tensors),
    )


def _report_unlisted(reading: FolderReading, file: str, part: Container, listed: set[str]) -> None:
    """Report tensors that the index does not put in `file`; a file it never names counts once."""
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


def models(reading: FolderReading, named: set[str]) -> dict[str, list[str]]:
    """Group the files that were read into models: the index's, numbered ones, single ones."""
    indexed = {_series(file) for file in named} - {None}
    groups: dict[str, list[str]] = {}
    for file in reading.parts:
        series = _series(file)
        if file in named or series in indexed:
            key = "\0index"
        else:
            key = file if series is None else "\0".join(map(str, series))
        groups.setdefault(key, []).append(file)
    return groups


def _series(file: str) -> tuple[str, int, str] | None:
    """Return base, total and suffix of a file named `base-00001-of-00003.suffix`."""
    match = _NUMBERED.fullmatch(file)
    return (match[1], int(match[3]), match[4].lower()) if match else None


def check_numbers(reading: FolderReading, named: set[str]) -> None:
    """Report the numbers that are missing among files named `-00001-of-00003` without an index."""
    groups: dict[tuple[str, int, str], set[int]] = {}
    for file in (*reading.parts, *reading.refused):
        match, series = _NUMBERED.fullmatch(file), _series(file)
        if match and series:
            groups.setdefault(series, set()).add(int(match[2]))
    # Where there is an index it says which files there should be.
    indexed = {_series(file) for file in named}
    for series, numbers in sorted(groups.items()):
        base, total, suffix = series
        missing = total - len([number for number in numbers if 1 <= number <= total])
        # Some writers count from zero: then the last number is the one that does not occur.
        if missing <= (0 in numbers) or series in indexed:
            continue
        first = next(number for number in range(1, total + 1) if number not in numbers)
        if not suffix.endswith("gguf"):  # parts of a split GGUF name one another
            lost = f"{missing} of {total} files of this name are missing"
            reading.skipped.append(Skipped(reading.display(f"{base}-...-of-...{suffix}"), lost))
        reading.log.add(
            "Q005",
            f"{missing} of {total} shards named '{safe(base)}-...-of-...{suffix}' are missing; the "
            f"first is number {first}",
            expected=f"{total} files",
            found=f"{total - missing} of them",
            missing=missing,
        )


def check_repeats(reading: FolderReading, named: set[str]) -> None:
    """Report a tensor that two files of one model hold (Q007)."""
    for files in models(reading, named).values():
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

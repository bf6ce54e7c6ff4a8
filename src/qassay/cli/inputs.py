"""What the user named: each path once, under a name that tells it from the others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from qassay.containers.opening import display_name
from qassay.containers.sources import INDEX_SUFFIX

_SUFFIXES = (".gguf", ".safetensors")


def distinct(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return each path once, in the order given, with how reports name it.

    A relative path is named as given. An absolute one is named by the shortest end of it that no
    other input has; at least its last part, and never the whole with its root.
    """
    once = {_identity(path): path for path in reversed(paths)}
    chosen = [once.pop(_identity(path)) for path in paths if _identity(path) in once]
    subjects = {_identity(_subject(path)): _subject(path) for path in chosen}
    names = _names(subjects)
    return [(path, names[_identity(_subject(path))]) for path in chosen]


def _subject(path: Path) -> Path:
    """Return what reports name: an index of shards goes by its folder."""
    index = path.name.lower().endswith(INDEX_SUFFIX) and not path.is_dir()
    return path.parent if index else path


def _identity(path: Path) -> str:
    """Return the same text for every spelling of one path; a link is not the file it leads to."""
    if path.name in ("", ".."):
        return os.path.realpath(path)
    return str(Path(os.path.realpath(path.parent)) / path.name)


def _names(subjects: dict[str, Path]) -> dict[str, str]:
    """Return names by identity: those that are alike grow by a folder until they differ."""
    names = {key: display_name(path) for key, path in subjects.items()}
    # As typed, not as links lead: that is what the user knows the folders by.
    parts = {key: Path(os.path.abspath(path)).parts[1:] for key, path in subjects.items()}  # noqa: PTH100
    taken = dict.fromkeys(subjects, 1)
    while True:
        seen = Counter(names.values())
        growing = [key for key in names if seen[names[key]] > 1 and taken[key] < len(parts[key])]
        # Relative names are what the user typed; they grow only where nothing else can.
        growing = [key for key in growing if subjects[key].is_absolute()] or growing
        if not growing:
            return names
        for key in growing:
            taken[key] += 1
            names[key] = str(Path(*parts[key][-taken[key] :]))


def input_bytes(path: Path) -> int:
    """Return about how many bytes will be read; wrong paths count nothing here."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        files = (file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
        return sum(file.stat().st_size for file in files)
    except (OSError, ValueError):
        return 0

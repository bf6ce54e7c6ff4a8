"""How the document names what the user named."""

from __future__ import annotations

from qassay.core.container import Container
from qassay.report.document import Input
from qassay.report.words import bits, count


def input_of(container: Container) -> Input:
    """Return how the document names an open container."""
    return Input(container.path, container.format, container.nbytes, _note(container))


def _note(container: Container) -> str:
    sized = [stored for stored in container.tensors if stored.nbytes is not None]
    parts = []
    version = container.extra.get("version")
    if isinstance(version, int) and version:
        parts.append(f"version {version}")
    files = len(container.sources)
    if container.format == "folder":
        parts.append(count(files, "file"))
    parts.append(count(len(container.tensors), "tensor"))
    mean = bits(sum(one.nbytes or 0 for one in sized), sum(one.size for one in sized))
    # A packed integer holds several weights: dividing by the number of integers would mislead.
    if mean is not None and not any(one.part_of for one in container.tensors):
        parts.append(f"{mean:.2f} bits/weight")
    return ", ".join(parts)


def missing_tensors(container: Container) -> int:
    """Return how many tensors an index lists that no file holds."""
    missing = container.extra.get("missing_tensors", 0)
    return missing if isinstance(missing, int) else 0

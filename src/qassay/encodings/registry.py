"""The encodings that are known: those of this folder and those of installed plugins."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from qassay.containers import open_container
from qassay.core.errors import DeclarationError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from qassay.core.container import Container, StoredType
    from qassay.encodings.base import Encoding
    from qassay.encodings.layers.assemble import Assembly
    from qassay.encodings.layers.base import LayerEncoding

ENTRY_POINTS = "qassay.encodings"
"""A plugin names a module in this entry-point group; importing it registers its encodings."""

_by_id: dict[str, type[Encoding]] = {}
_by_label: dict[tuple[str, int | str], type[Encoding]] = {}


def register(encoding: type[Encoding]) -> None:
    """Add a declared encoding; called when its class is created.

    Raises:
        DeclarationError: Its id, or a label it is stored as, belongs to another encoding.
    """
    taken = _by_id.get(encoding.id)
    for label in encoding.stored_as:
        taken = taken or _by_label.get(label.key)
    if taken is not None:
        raise DeclarationError(
            f"encoding {encoding.id} is declared twice",
            expected="an id and stored_as labels of its own",
            found=f"declarations in {taken.__module__} and {encoding.__module__}",
        )
    _by_id[encoding.id] = encoding
    for label in encoding.stored_as:
        _by_label[label.key] = encoding
        label.announce(encoding)


@cache
def _load_own() -> None:
    package = importlib.import_module("qassay.encodings")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.ispkg:  # layers: only who asks for them needs them
            importlib.import_module(f"{package.__name__}.{module.name}")


@cache
def _load_plugins() -> None:
    # importlib.metadata costs half of what NumPy costs to import: only when it can matter.
    from importlib.metadata import entry_points  # noqa: PLC0415

    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()


def open_with_encodings(path: str | os.PathLike[str], name: str | None = None) -> Container:
    """Open a model after the declared encodings have told the containers their sizes.

    Plugins are asked only when the input holds a type that is not known otherwise.

    Args:
        path: See `open_container`.
        name: See `open_container`.

    Raises:
        InputError: See `open_container`.
    """
    _load_own()
    container = open_container(path, name)
    known = len(_by_label)
    if any(tensor.type.block == 0 for tensor in container.tensors):
        _load_plugins()
        if len(_by_label) > known:
            container.close()
            return open_container(path, name)
    return container


def assembled(container: Container) -> Assembly | None:
    """Return what a container's tensors make up, None where nothing hints at layers."""
    hints = any(
        tensor.type.family == "safetensors"
        and (
            tensor.part_of
            or str(tensor.type.label).startswith("F8_")
            or (len(tensor.shape) > 1 and str(tensor.type.label)[:1] in ("I", "U"))
        )
        for tensor in container.tensors
    )
    if not hints and not _is_configured(container):
        return None
    # A model without layers does not pay for their import.
    from qassay.encodings.layers import assemble  # noqa: PLC0415

    return assemble(container)


def _is_configured(container: Container) -> bool:
    """Tell whether a checkpoint's configuration says that it is quantized."""
    config = container.extra.get("config")
    holders = [config, *config.values()] if isinstance(config, dict) else []
    told = any(
        key in holder
        for holder in holders
        if isinstance(holder, dict)
        for key in ("quantization_config", "compression_config")
    )
    return told or any(str(key).startswith("quant") for key in container.extra)


def for_stored_type(stored: StoredType) -> type[Encoding] | None:
    """Return the encoding a container's label stands for, None when no declaration claims it."""
    _load_own()
    key = (stored.family, stored.label)
    if key not in _by_label:
        _load_plugins()
    return _by_label.get(key)


def by_id(name: str) -> type[Encoding]:
    """Return the encoding called `name`: an id, or the last part of one; case does not matter.

    The last part is enough only for encodings of one tensor: `mxfp4` is ggml's block, however
    many families of layers end in it.

    Raises:
        KeyError: No encoding, or more than one, is called that.
    """
    every = all_encodings()
    wanted = name.lower()
    if wanted in every:
        return every[wanted]
    matches = [
        found
        for key, found in every.items()
        if key.rpartition(".")[2] == wanted and found.kind != "layer"
    ]
    if len(matches) != 1:
        raise KeyError(name)
    return matches[0]


def all_layers() -> tuple[type[LayerEncoding], ...]:
    """Return every registered family of weights that are kept in several tensors, by id."""
    from qassay.encodings.layers.base import LayerEncoding  # noqa: PLC0415 - it imports this file

    found = (each for _, each in sorted(_by_id.items()))
    return tuple(each for each in found if issubclass(each, LayerEncoding))


def all_encodings() -> Mapping[str, type[Encoding]]:
    """Return every encoding by id, in order of id, families of layers among them."""
    from qassay.encodings.layers.assemble import load_families  # noqa: PLC0415 - imports this file

    _load_own()
    load_families()
    _load_plugins()
    return dict(sorted(_by_id.items()))

"""`qassay pad`: a checkpoint whose Linears have whole lanes, proven equal to the one it is made of.

The new folder is written under a temporary name, read again and compared with the source tensor
by tensor, and gets its name only then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from qassay.containers.new_file import refusal, sync_folder
from qassay.containers.opening import display_name
from qassay.containers.safetensors_out import NewTensor, SafetensorsWriter
from qassay.containers.sources import INDEX_SUFFIX
from qassay.core.container import Container, StoredTensor
from qassay.core.errors import InputError, UsageError
from qassay.core.text import safe
from qassay.encodings.layers.assemble import Assembly, assemble
from qassay.encodings.registry import open_with_encodings
from qassay.run.pad_files import Others, copy_others, others
from qassay.run.pad_proof import Proof, Watch, prove
from qassay.runtimes.channel_padding import (
    CannotPadError,
    Growth,
    grow_float,
    grow_layer,
    slices,
)
from qassay.runtimes.targets_recipes import keeps_float, role_of

CROPS = "crops.json"
"""The file that says which outputs have to be cropped, and to what."""

MOST_MULTIPLE = 1 << 16
MOST_NEW_WEIGHTS = 1 << 26
"""Weights that one layer may become larger by: new channels are made in memory."""

_MOST_NEW_IN_ALL = 1 << 31
_BROKEN = frozenset({"Q001", "Q002", "Q003", "Q005", "Q007"})
_HEADS = re.compile(r"(^|[._])(q|k|v)_proj$")
_FUSED = re.compile(r"(qkv|gate_up|in_proj_(ba|qkvz?)|query_key_value|c_attn|kv_a_proj)")
_VOCABULARY = {
    "output": "its output is the vocabulary: padded logits of 0 would win over negative ones",
    "embedding": "an embedding: its rows are looked up by number",
}
_VISION = re.compile(r"(^|\.)(visual|vision_tower|vision_model|vit)\.")


@dataclass(frozen=True, slots=True)
class PadOptions:
    """What to do.

    Attributes:
        multiple: What the number of output channels has to be a multiple of.
        on: The runtime, for reports; "" where only a number was given.
        layers: Shell patterns of layers; all where empty.
        watch: Told of bytes written and compared.
    """

    multiple: int
    on: str = ""
    layers: tuple[str, ...] = ()
    watch: Watch | None = None


@dataclass(frozen=True, slots=True)
class PaddedLayer:
    """A layer that needs more channels.

    Attributes:
        name: Of the module.
        encoding: `gptq.int4`, `bf16`.
        rows: N.
        padded: N'.
        columns: K.
        growths: How its tensors grow.
        before: What the crop has to come before.
    """

    name: str
    encoding: str
    rows: int
    padded: int
    columns: int
    growths: tuple[Growth, ...]
    before: str

    @property
    def more_bytes(self) -> int:
        """How much larger it becomes."""
        return sum(one.nbytes - (one.stored.nbytes or 0) for one in self.growths)

    def crop(self) -> dict[str, Any]:
        """Return its entry in `crops.json`."""
        return {
            "rows": self.rows,
            "padded": self.padded,
            "columns": self.columns,
            "encoding": self.encoding,
            "before": self.before,
            "parts": {one.stored.name: list(one.shape) for one in self.growths},
        }


@dataclass(frozen=True, slots=True)
class Left:
    """A weight that is not padded, and why."""

    name: str
    shape: tuple[int, ...]
    reason: str


@dataclass(slots=True)
class PadResult:
    """What came of it.

    Attributes:
        options: What was asked for.
        container: The source, closed.
        destination: The new folder, as reports name it.
        padded: Layers that became larger; that would, where others are refused.
        fitting: How many layers have a number of channels that fits.
        refused: Layers that would need padding and cannot have it.
        left: Weights that no lanes are asked of.
        others: What lies in the source beside the weights, where something is to be padded.
        proof: What was compared; None where nothing was written.
        new_weights: Weights of channels that were planned to be added.
    """

    options: PadOptions
    container: Container
    destination: str
    padded: list[PaddedLayer] = field(default_factory=list)
    fitting: int = 0
    refused: list[Left] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    others: Others = field(default_factory=Others)
    proof: Proof | None = None
    new_weights: int = 0


def pad(source: Path, destination: Path, options: PadOptions) -> PadResult:
    """Write the checkpoint folder `source` with padded Linears as the new folder `destination`.

    Nothing is written where nothing needs padding, a layer that does cannot have it, or a file
    beside the weights cannot be copied.

    Raises:
        InputError: The source cannot be read in full.
        UsageError: It is no folder of safetensors, a pattern matches nothing, or the destination
            cannot be written.
    """
    if not 1 <= options.multiple <= MOST_MULTIPLE:
        raise UsageError(
            "the multiple is out of range", expected=f"1 to {MOST_MULTIPLE}",
            found=str(options.multiple),
        )  # fmt: skip
    target = _free_name(source, destination)
    _unpadded(source)
    with closing(open_with_encodings(source)) as container:
        _sound(container)
        result = PadResult(options, container, display_name(destination))
        assembly = assemble(container)
        _plan(assembly, result)
        if result.padded:
            result.others = others(source, container.extra["parts"])
        if result.padded and not result.refused and not result.others.lost:
            _write(source, container, target, result)
        return result


def _free_name(source: Path, destination: Path) -> Path:
    try:
        target = destination.resolve()
        inside = target.is_relative_to(source.resolve())
    except (OSError, RuntimeError) as error:
        raise UsageError(f"the new folder cannot be written: {error}") from error
    shown = safe(display_name(destination))
    try:
        taken = target.exists() or destination.is_symlink()
    except OSError as error:  # a name that is too long
        raise refusal(error, target) from error
    if taken:
        raise UsageError("there is something of this name already", path=shown,
                         hint="name a new folder")  # fmt: skip
    if inside:
        raise UsageError("the new folder would lie in the source", path=shown,
                         hint="name a folder elsewhere")  # fmt: skip
    if not target.parent.is_dir():
        raise UsageError("there is no folder to write the new one into",
                         path=safe(str(destination.parent)), hint="create it")  # fmt: skip
    return target


def _unpadded(source: Path) -> None:
    """Make sure that the source is a folder, and no padded one: its crops would be lost."""
    if source.is_file() and source.name.lower().endswith(INDEX_SUFFIX):
        raise UsageError("only a whole folder is padded", path=safe(display_name(source)),
                         found="an index", hint="name the folder that holds it")  # fmt: skip
    if os.path.lexists(source / CROPS):
        raise UsageError(
            f"the source holds {CROPS}: it is padded already",
            path=safe(display_name(source)),
            hint="pad the checkpoint that it was made from, so that one crop leads back to it",
        )


def _sound(container: Container) -> None:
    """Make sure that all of the source is there and can be told apart."""
    if container.format != "folder":
        raise UsageError(
            "only a folder is padded: its configuration says what its tensors mean",
            path=container.path,
            expected="a folder of safetensors files with their config.json",
            found=f"a {container.format} file",
        )
    if any(part.format != "safetensors" for part in container.extra["parts"].values()):
        raise UsageError("GGUF files are not padded", path=container.path,
                         expected="safetensors files only", found="GGUF")  # fmt: skip
    for defect in container.defects:
        if defect.code in _BROKEN and not defect.minor:
            raise InputError(
                f"the source is not whole: {defect.message}",
                path=container.path,
                hint="`qassay check` lists what is wrong with it",
            )
    lost = [one for one in container.tensors if not one.readable or one.nbytes is None]
    if lost or container.skipped:
        name = lost[0].name if lost else container.skipped[0].name
        raise InputError("the source cannot be read in full", path=container.path,
                         found=f"{safe(name)} is not readable")  # fmt: skip


def _plan(assembly: Assembly, result: PadResult) -> None:
    """Sort every weight into what is padded, fits, cannot be padded, or is left alone."""
    patterns = result.options.layers
    matched = False
    for layer in assembly.layers:
        if patterns and not _matches(layer.module, patterns):
            continue
        matched = True
        module = assembly.modules[layer.module]
        role = role_of(f"{layer.module}.weight")
        _sort(result, layer.module, layer.label, (layer.rows, layer.columns),
              lambda target, layer=layer, module=module: grow_layer(layer, module, target),
              _VOCABULARY.get(role, ""))  # fmt: skip
    for stored in assembly.loose:
        name, _, part = stored.name.rpartition(".")
        if patterns and not _matches(name, patterns):
            continue
        if stored.part_of:
            matched = True
            if all(one.name != name for one in result.refused):
                result.refused.append(Left(name, stored.shape, stored.part_of))
            continue
        if _fused_experts(stored) and not patterns:
            result.left.append(Left(stored.name, stored.shape, "experts fused into one tensor"))
            continue
        if part != "weight" or len(stored.shape) != 2 or 0 in stored.shape:
            continue
        matched = True
        why = _no_linear(stored)
        if why and not patterns:
            if stored.shape[0] % result.options.multiple:
                result.left.append(Left(name, stored.shape, why))
            continue
        module = assembly.modules[name]
        _sort(result, name, str(stored.type.label).lower(), stored.shape,
              lambda target, module=module: grow_float(module, target), why)  # fmt: skip
    if patterns and not matched:
        raise UsageError("--layers matches no weight", found=safe(", ".join(patterns)),
                         hint="`qassay inspect` lists the names")  # fmt: skip


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _fused_experts(stored: StoredTensor) -> bool:
    """Return whether it is `[E, ., .]` of experts; which axis is N is not the same everywhere."""
    return len(stored.shape) == 3 and "expert" in stored.name.lower()


def _no_linear(stored: StoredTensor) -> str:
    """Return why a float matrix is no Linear that is dealt to lanes, "" for one that is."""
    role = role_of(stored.name)
    if role == "output":
        return "its output is the vocabulary; compilers keep it at 16 bits"
    if role == "embedding" or "embed" in stored.name.lower():
        return "an embedding"
    if _VISION.search(stored.name):
        return "of the vision tower, which compilers keep at 16 bits"
    return keeps_float(stored.name, stored.shape)


def _sort(
    result: PadResult, name: str, encoding: str, shape: tuple[int, ...], grow: Any, reason: str
) -> None:
    rows, columns = shape
    padded = -(-rows // result.options.multiple) * result.options.multiple
    if padded == rows:
        result.fitting += 1
        return
    if reason:
        result.refused.append(Left(name, shape, reason))
        return
    more = (padded - rows) * columns
    if more > MOST_NEW_WEIGHTS or result.new_weights + more > _MOST_NEW_IN_ALL:
        why = f"it would become larger by {more} weights, more than are made in memory"
        result.refused.append(Left(name, shape, why))
        return
    result.new_weights += more
    try:
        growths = tuple(grow(padded))
    except CannotPadError as error:
        result.refused.append(Left(name, shape, str(error)))
        return
    result.padded.append(PaddedLayer(name, encoding, rows, padded, columns, growths, _before(name)))


def _before(name: str) -> str:
    """Return what the output has to be cropped before."""
    last = name.rpartition(".")[2]
    if _FUSED.search(last):
        return "it is split into its parts"
    if _HEADS.search(last):
        return "it is reshaped into heads"
    return "anything reads it"


def _write(source: Path, container: Container, target: Path, result: PadResult) -> None:
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(4)}.part")
    try:
        temporary.mkdir()
        _fill(source, container, temporary, result)
        with closing(open_with_encodings(temporary, result.destination)) as made:
            result.proof = prove(container, made, result.padded, result.options.watch)
        sync_folder(temporary)
        temporary.rename(target)  # refuses to replace a folder that is not empty
        sync_folder(target.parent)
    except OSError as error:
        raise refusal(error, target) from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)


def _fill(source: Path, container: Container, folder: Path, result: PadResult) -> None:
    grown = {_key(one.stored): one for layer in result.padded for one in layer.growths}
    sizes = {}
    for file, part in container.extra["parts"].items():
        sizes[file] = _write_part(folder / file, part, grown, result.options.watch)
    copy_others(source, folder, result.others, sum(sizes.values()))
    crops = {layer.name: layer.crop() for layer in result.padded}
    text = json.dumps(crops, indent=2)
    (folder / CROPS).write_text(text + "\n", encoding="utf-8")


Key = tuple[str, str]


def _key(stored: StoredTensor) -> Key:
    return stored.path, stored.name


def _write_part(path: Path, part: Container, grown: dict[Key, Growth], watch: Watch | None) -> int:
    """Write one file and return the bytes of its tensors."""
    new = [
        NewTensor(
            one.name,
            str(one.type.label),
            grown[_key(one)].shape if _key(one) in grown else one.shape,
        )
        for one in part.tensors
    ]
    metadata = {key: text for key, text in part.metadata.items() if isinstance(text, str)}
    writer = SafetensorsWriter(path, new, metadata)
    try:
        with writer:
            for one in part.tensors:
                growth = grown.get(_key(one))
                for piece in slices(one) if growth is None else growth.pieces():
                    writer.write(piece)
                    if watch is not None:
                        watch(piece.size)
    finally:
        writer.discard()
    return sum(one.nbytes for one in new)


def shapes_of(layers: Sequence[PaddedLayer]) -> Iterator[tuple[PaddedLayer, int]]:
    """Yield one layer of each shape and encoding, and how many there are of it."""
    kinds = Counter((one.encoding, one.rows, one.padded, one.columns) for one in layers)
    seen = set()
    for one in layers:
        kind = (one.encoding, one.rows, one.padded, one.columns)
        if kind not in seen:
            seen.add(kind)
            yield one, kinds[kind]
